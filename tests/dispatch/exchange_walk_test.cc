// Random walks of LayerExchange against a model that knows nothing of its
// inside: who was asked for what, who answered, and whom no one will ask again.

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/dispatch/exchange_driver.h"
#include "tests/dispatch/random_layer.h"

namespace trunkline::dispatch {
namespace {

struct Pending {
  SendAction send;
  std::vector<uint32_t> routes;  // copied: the model trusts no pointer
  WorkerId worker;
  bool withdrawn = false;  // its worker is out, or it was refused
  bool used = false;
};

struct Tally {
  int done = 0, unavailable = 0, deadline = 0, late = 0, lies = 0, replaced = 0;
};

class Walk {
 public:
  Walk(uint64_t seed, Tally* tally)
      : random_(seed), tally_(tally), now_(absl::FromUnixSeconds(5)) {
    layer_ = MakeRandomLayer(random_, 6, 8, 4, random_.NextBelow(2) == 0);
    limits_.worker_deadline = absl::Milliseconds(100);
    limits_.step_deadline = absl::Milliseconds(450);
    limits_.attempts_max = static_cast<uint16_t>(2 + random_.NextBelow(4));
  }

  void Run() {
    for (uint64_t step = 1; step <= 3; ++step) RunStep(StepId(step));
  }

 private:
  void RunStep(StepId step) {
    step_ = step;
    version_ = PlacementVersion(10 * step.value);
    old_pending_.insert(old_pending_.end(), pending_.begin(), pending_.end());
    pending_.clear();
    out_.clear();
    waiting_.clear();
    done_.clear();
    ended_ = false;
    begun_ = now_;
    std::vector<WorkerId> live;
    for (WorkerId w : layer_.workers) {
      if (random_.NextBelow(8) != 0) live.push_back(w);
    }
    live_ = std::set<WorkerId>(live.begin(), live.end());
    Take(exchange_.Begin(step, 0, &layer_.table, &layer_.placement, version_,
                         live, limits_, now_));
    for (int i = 0; i < 60 && !ended_ && !exchange_.done(); ++i) {
      Event();
      CheckInvariants();
      if (::testing::Test::HasFatalFailure()) return;
    }
    Finish();
  }

  // What came back from a call that may plan again.
  void Take(const absl::StatusOr<std::vector<SendAction>>& sends) {
    if (!sends.ok()) {
      ended_ = true;
      const absl::StatusCode code = sends.status().code();
      ASSERT_TRUE(code == absl::StatusCode::kUnavailable ||
                  code == absl::StatusCode::kDeadlineExceeded)
          << sends.status();
      (code == absl::StatusCode::kUnavailable ? tally_->unavailable
                                              : tally_->deadline)++;
      if (code == absl::StatusCode::kUnavailable) {
        CheckUnavailable(std::string(sends.status().message()));
      }
      return;
    }
    for (const SendAction& send : *sends) {
      ASSERT_EQ(send.version, version_);
      Pending p{send, send.share->routes, send.share->worker};
      ASSERT_TRUE(live_.contains(p.worker)) << "sent to a worker that is out";
      for (uint32_t r : p.routes) {
        ASSERT_FALSE(done_.contains(r)) << "asked twice for a done route";
        ASSERT_EQ(Carriers(r), 0) << "asked two workers for one route";
      }
      pending_.push_back(p);
      sent_.emplace(Key(p), now_);
    }
  }

  // An UNAVAILABLE must be true: some unanswered route has no live replica, or
  // the attempts are used up.
  void CheckUnavailable(const std::string& message) {
    bool stuck = false;
    for (uint32_t r = 0; r < layer_.table.size(); ++r) {
      if (layer_.table.fate[r] != routing::RouteFate::kAccepted ||
          done_.contains(r) || Carriers(r) > 0 || waiting_.contains(r)) {
        continue;
      }
      bool any = false;
      for (const auto& replica :
           layer_.placement.replicas[layer_.table.expert_id[r].value]) {
        any |= live_.contains(replica.worker);
      }
      stuck |= !any;
    }
    std::set<uint16_t> attempts;
    for (const Pending& p : pending_) attempts.insert(p.send.attempt);
    ASSERT_TRUE(stuck || attempts.size() >= limits_.attempts_max) << message;
  }

  int Carriers(uint32_t route) const {
    int carriers = 0;
    for (const Pending& p : pending_) {
      if (p.withdrawn || p.used) continue;
      for (uint32_t r : p.routes) carriers += r == route ? 1 : 0;
    }
    return carriers;
  }

  void WithdrawWorker(WorkerId worker) {
    live_.erase(worker);
    out_.insert(worker);
    for (Pending& p : pending_) {
      if (p.worker == worker) p.withdrawn = true;
    }
  }

  void Event() {
    now_ += absl::Milliseconds(static_cast<int64_t>(random_.NextBelow(25)));
    switch (random_.NextBelow(12)) {
      case 0:
        return KillWorker();
      case 1:
        return Refuse();
      case 2:
        return Lie();
      case 3:
        return AnswerOfAnotherStep();
      case 4:
      case 5:
        return Tick();
      case 6:
        return ReplacePlacement();
      default:
        return Answer();
    }
  }

  Pending* Pick() {
    if (pending_.empty()) return nullptr;
    return &pending_[random_.NextBelow(pending_.size())];
  }

  void Answer() {  // true, duplicate or late, as it happens
    Pending* p = Pick();
    if (p == nullptr) return;
    const AnswerParts answer =
        MakeAnswer(p->send, layer_.table, step_, layer_.placement.layer, 0);
    const auto used =
        exchange_.OnAnswer(p->worker, answer.View(), next_number_);
    ASSERT_TRUE(used.ok()) << used.status();
    ASSERT_EQ(*used, !p->withdrawn && !p->used);
    if (!*used) {
      ++tally_->late;
      return;
    }
    p->used = true;
    for (size_t i = 0; i < p->routes.size(); ++i) {
      ASSERT_TRUE(
          done_.emplace(p->routes[i], std::pair(next_number_, i)).second);
    }
    ++next_number_;
  }

  void AnswerOfAnotherStep() {
    if (old_pending_.empty()) return;
    const Pending& p = old_pending_[random_.NextBelow(old_pending_.size())];
    AnswerParts answer;
    answer.header.worker_rank = p.worker.value;
    answer.header.step_id = step_.value - 1;
    answer.header.layer = layer_.placement.layer.value;
    const auto used = exchange_.OnAnswer(p.worker, answer.View(), 999999);
    ASSERT_TRUE(used.ok());
    ASSERT_FALSE(*used);
  }

  void Lie() {
    Pending* p = Pick();
    if (p == nullptr || p->withdrawn || p->used) return;
    AnswerParts answer =
        MakeAnswer(p->send, layer_.table, step_, layer_.placement.layer, 0);
    const size_t at = random_.NextBelow(answer.slot.size());
    switch (random_.NextBelow(5)) {
      case 0:
        answer.expert_id[at] += 1;
        break;
      case 1:
        answer.token_id[at] += 1000;
        break;
      case 2:
        answer.slot[at] = static_cast<uint16_t>(answer.slot[at] + 100);
        break;
      case 3:
        answer.header.attempt = 1000;
        break;
      default:
        answer.header.step_id += 1;
        break;
    }
    const auto used = exchange_.OnAnswer(p->worker, answer.View(), 999999);
    ASSERT_FALSE(used.ok());
    ++tally_->lies;
    // As the edge does: a liar is down.
    const WorkerId worker = p->worker;
    WithdrawWorker(worker);
    Take(exchange_.OnWorkerDown(worker, std::string(used.status().message()),
                                now_));
  }

  void KillWorker() {
    const WorkerId worker =
        layer_.workers[random_.NextBelow(layer_.workers.size())];
    WithdrawWorker(worker);
    Take(exchange_.OnWorkerDown(worker, "killed", now_));
  }

  void Refuse() {
    Pending* p = Pick();
    if (p == nullptr) return;
    const RefusalCode codes[] = {RefusalCode::kUnknownVersion,
                                 RefusalCode::kDraining,
                                 RefusalCode::kNotOwner};
    const RefusalCode code = codes[random_.NextBelow(3)];
    const bool late = p->withdrawn || p->used;
    const RefusalFrameView refusal{
        MakeReplyHeader(p->send, step_, layer_.placement.layer, 0, code), ""};
    const WorkerId worker = p->worker;
    if (!late && code == RefusalCode::kUnknownVersion) {
      p->withdrawn = true;
      if (p->send.version == version_) {
        waiting_.insert(p->routes.begin(), p->routes.end());
        const auto sends = exchange_.OnRefused(worker, refusal, now_);
        ASSERT_EQ(sends.status().code(), absl::StatusCode::kFailedPrecondition);
        return;
      }
    } else if (!late) {
      WithdrawWorker(worker);
    }
    const size_t before = pending_.size();
    Take(exchange_.OnRefused(worker, refusal, now_));
    if (late) {
      ASSERT_EQ(pending_.size(), before);
    }
  }

  void ReplacePlacement() {
    version_ = PlacementVersion(version_.value + 1);
    std::vector<WorkerId> live;
    for (WorkerId w : layer_.workers) {
      if (random_.NextBelow(8) != 0) live.push_back(w);
    }
    live_.clear();
    for (WorkerId w : live) {
      if (!out_.contains(w)) live_.insert(w);
    }
    waiting_.clear();
    ++tally_->replaced;
    Take(exchange_.Replace(&layer_.placement, version_, live, now_));
  }

  void Tick() {
    const absl::Time due = exchange_.next_deadline();
    if (random_.NextBelow(3) == 0) now_ = std::max(now_, due);
    if (now_ < begun_ + limits_.step_deadline) {
      std::set<WorkerId> slow;
      for (const Pending& p : pending_) {
        if (!p.withdrawn && !p.used &&
            now_ >= sent_.at(Key(p)) + limits_.worker_deadline) {
          slow.insert(p.worker);
        }
      }
      for (WorkerId w : slow) WithdrawWorker(w);
    }
    Take(exchange_.Tick(now_));
  }

  static std::pair<uint32_t, uint16_t> Key(const Pending& p) {
    return {p.worker.value, p.send.attempt};
  }

  void CheckInvariants() {
    int64_t accepted = 0;
    for (uint32_t r = 0; r < layer_.table.size(); ++r) {
      const RouteAnswer& a = exchange_.answers()[r];
      const auto it = done_.find(r);
      if (it == done_.end()) {
        ASSERT_EQ(a.answer, UINT32_MAX);
        ASSERT_NE(exchange_.states()[r], RouteState::kDone);
      } else {
        ASSERT_EQ(a.answer, it->second.first);
        ASSERT_EQ(a.row, it->second.second);
        ASSERT_EQ(exchange_.states()[r], RouteState::kDone);
      }
      if (layer_.table.fate[r] != routing::RouteFate::kAccepted) continue;
      ++accepted;
      // Done, under way with exactly one worker, or waiting for a placement.
      if (!ended_) {
        ASSERT_EQ((it != done_.end() ? 1 : 0) + Carriers(r) +
                      (waiting_.contains(r) ? 1 : 0),
                  1);
      }
    }
    ASSERT_EQ(exchange_.done(), accepted == static_cast<int64_t>(done_.size()));
    ASSERT_EQ(exchange_.counters().routes_done, done_.size());
    ASSERT_EQ(exchange_.CheckConservation().ok(), exchange_.done());
  }

  void Finish() {
    sent_.clear();
    if (exchange_.done()) {
      ++tally_->done;
      ASSERT_TRUE(exchange_.CheckConservation().ok());
      ASSERT_EQ(exchange_.next_deadline(), absl::InfiniteFuture());
    } else if (ended_) {
      // The first error is final, and nothing can complete after it.
      ASSERT_FALSE(exchange_.Tick(now_).ok());
      ASSERT_FALSE(exchange_.CheckConservation().ok());
      if (Pending* p = Pick()) {
        const AnswerParts answer =
            MakeAnswer(p->send, layer_.table, step_, layer_.placement.layer, 0);
        const auto used = exchange_.OnAnswer(p->worker, answer.View(), 5);
        ASSERT_TRUE(used.ok());
        ASSERT_FALSE(*used);
      }
    }
  }

  RandomStream random_;
  Tally* tally_;
  absl::Time now_;
  absl::Time begun_;
  RandomLayer layer_;
  LayerExchange::Limits limits_;
  LayerExchange exchange_;
  StepId step_;
  PlacementVersion version_;
  bool ended_ = false;
  std::vector<Pending> pending_;
  std::vector<Pending> old_pending_;
  std::set<WorkerId> live_;
  std::set<WorkerId> out_;
  std::set<uint32_t> waiting_;
  std::map<uint32_t, std::pair<uint32_t, size_t>> done_;
  std::map<std::pair<uint32_t, uint16_t>, absl::Time> sent_;
  uint32_t next_number_ = 0;
};

TEST(LayerExchangeWalk, CompletesEachRouteOnceOrEndsWithATrueError) {
  Tally tally;
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    Walk walk(seed, &tally);
    walk.Run();
    ASSERT_FALSE(::testing::Test::HasFailure()) << "seed " << seed;
  }
  // The walks must reach every ending, or they prove nothing about it.
  EXPECT_GT(tally.done, 2000);
  EXPECT_GT(tally.unavailable, 2000);
  EXPECT_GT(tally.deadline, 50);
  EXPECT_GT(tally.late, 2000);
  EXPECT_GT(tally.lies, 2000);
  EXPECT_GT(tally.replaced, 2000);
}

}  // namespace
}  // namespace trunkline::dispatch
