#include "placement/layer_search.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

namespace trunkline::placement {
namespace {

// A step has to win more than rounding noise, or steps could go in circles.
constexpr double kLeastWin = 1e-9;
constexpr size_t kThreeWayWorkers = 24;
// What two ways to add the same numbers up may differ by.
constexpr double kRounding = 1e-9;

// A small number for every text, the same for equal ones.
std::vector<size_t> Numbered(const std::vector<WorkerProfile>& workers,
                             std::string WorkerProfile::*text, size_t* count) {
  std::map<std::string, size_t> numbers;
  std::vector<size_t> result;
  for (const WorkerProfile& profile : workers) {
    result.push_back(
        numbers.emplace(profile.*text, numbers.size()).first->second);
  }
  *count = numbers.size();
  return result;
}

}  // namespace

LayerSearch::LayerSearch(std::shared_ptr<const SearchLayer> layer,
                         const std::vector<WorkerProfile>& workers,
                         const std::vector<std::vector<size_t>>& holders,
                         SearchBudget* budget)
    : layer_(std::move(layer)),
      workers_(workers),
      budget_(budget),
      holders_(holders),
      on_worker_(workers.size()),
      has_(holders.size(), workers.size()),
      time_(workers.size()),
      take_over_(holders.size()),
      touched_at_(workers.size()) {
  size_t classes = 0;
  domain_ = Numbered(workers, &WorkerProfile::failure_domain, &domains_);
  class_ = Numbered(workers, &WorkerProfile::numerics_class, &classes);
  double speed = 0;
  speed_least_ = workers[0].speed;
  for (const WorkerProfile& profile : workers) {
    speed += profile.speed;
    speed_least_ = std::min(speed_least_, profile.speed);
  }
  ideal_ =
      std::accumulate(layer_->load.begin(), layer_->load.end(), 0.0) / speed;
  for (size_t e = 0; e < holders_.size(); ++e) {
    const double share = Share(e);
    for (const size_t w : holders_[e]) {
      has_.Insert(e, w);
      on_worker_[w].push_back(e);
      time_[w] += share / workers_[w].speed;
      ++copies_;
    }
  }
}

double LayerSearch::slowest() const {
  return *std::max_element(time_.begin(), time_.end());
}

bool LayerSearch::Step() {
  const auto worst = std::max_element(time_.begin(), time_.end());
  worst_time_ = *worst;
  second_time_ = 0;
  for (auto it = time_.begin(); it != time_.end(); ++it) {
    if (it != worst) second_time_ = std::max(second_time_, *it);
  }
  best_.reset();
  ++step_;
  const size_t w = static_cast<size_t>(worst - time_.begin());
  for (const size_t expert : on_worker_[w]) ProposeFor(expert, w);
  if (!best_) ProposeThreeWay(w);
  if (!best_) return false;
  Apply(*best_);
  return true;
}

bool LayerSearch::Kick(RandomStream& random) {
  const size_t worst = static_cast<size_t>(
      std::max_element(time_.begin(), time_.end()) - time_.begin());
  constexpr int kDraws = 32;
  for (int draw = 0; draw < kDraws && !on_worker_[worst].empty(); ++draw) {
    const size_t to = random.NextBelow(workers_.size());
    const size_t expert =
        on_worker_[worst][random.NextBelow(on_worker_[worst].size())];
    if (to == worst || Has(expert, to) || on_worker_[to].empty()) continue;
    const size_t other =
        on_worker_[to][random.NextBelow(on_worker_[to].size())];
    const bool swap = random.NextBelow(2) == 0 && !Has(other, worst);
    const Changes changes =
        swap ? Changes({.expert = expert, .from = worst, .to = to},
                       {.expert = other, .from = to, .to = worst})
             : Changes({.expert = expert, .from = kNone, .to = to},
                       {.expert = other, .from = to, .to = kNone});
    if (!Allowed(changes)) continue;
    Peak(changes);  // lists the workers that it touches
    Apply({.changes = changes, .peak = 0, .cost = Cost(changes)});
    return true;
  }
  return false;
}

void LayerSearch::TakeFrom(const LayerSearch& other) {
  copies_ = other.copies_;
  holders_ = other.holders_;
  on_worker_ = other.on_worker_;
  has_ = other.has_;
  time_ = other.time_;
}

LayerSearch::Ends LayerSearch::EndsOf(size_t expert, size_t worst) const {
  const double here = Share(expert);
  const double more =
      layer_->load[expert] / static_cast<double>(holders_[expert].size() + 1);
  Ends ends;
  ends.moved = here;
  ends.copied = more;
  const double speed = workers_[worst].speed;
  ends.worst_moved = ends.least_moved = worst_time_ - here / speed;
  ends.least_copied = worst_time_ - (here - more) / speed;
  // Its other holders are part of the peak too.
  for (const size_t holder : holders_[expert]) {
    if (holder == worst) continue;
    ends.least_moved = std::max(ends.least_moved, time_[holder]);
    ends.least_copied =
        std::max(ends.least_copied,
                 time_[holder] - (here - more) / workers_[holder].speed);
  }
  ends.relief = (here - more) / speed_least_;
  return ends;
}

double LayerSearch::TakenOver(size_t expert, size_t worker, size_t worst) {
  TakeOver& known = take_over_[expert];
  if (known.step != step_) {
    known = {.step = step_, .most = 0, .second = 0, .at = kNone};
    const double count = static_cast<double>(holders_[expert].size());
    const double gain =
        layer_->load[expert] / (count - 1) - layer_->load[expert] / count;
    for (const size_t holder : holders_[expert]) {
      if (holder == worst) continue;  // which gives something up, too
      const double time = time_[holder] + gain / workers_[holder].speed;
      if (time >= known.most) {
        known.second = known.most;
        known.most = time;
        known.at = holder;
      } else {
        known.second = std::max(known.second, time);
      }
    }
  }
  return known.at == worker ? known.second : known.most;
}

// As Consider compares: below the second slowest worker all peaks are alike.
bool LayerSearch::Wanted(double time) const {
  const double most = best_ ? std::max(best_->peak, second_time_) : worst_time_;
  return time <= most * (1 + kRounding);
}

void LayerSearch::ProposeFor(size_t expert, size_t worst) {
  if (layer_->load[expert] <= 0) return;
  // Without it here, its other copies take the load.
  Consider(Changes({.expert = expert, .from = worst, .to = kNone}), 0);
  const Ends ends = EndsOf(expert, worst);
  for (size_t to = 0; to < workers_.size(); ++to) {
    if (to == worst || time_[to] >= worst_time_ || Has(expert, to)) continue;
    const double speed = workers_[to].speed;
    const double moved =
        std::max(ends.least_moved, time_[to] + ends.moved / speed);
    const double copied =
        std::max(ends.least_copied, time_[to] + ends.copied / speed);
    if (Wanted(moved))
      Consider(Changes({.expert = expert, .from = worst, .to = to}), moved);
    if (Wanted(copied))
      Consider(Changes({.expert = expert, .from = kNone, .to = to}), copied);
    ProposePairs(expert, worst, to, ends);
  }
}

// A copy at `to` makes room: it comes to the slowest worker, or its other
// copies do its work.
void LayerSearch::ProposePairs(size_t expert, size_t worst, size_t to,
                               const Ends& ends) {
  const double moved = time_[to] + ends.moved / workers_[to].speed;
  const double copied = time_[to] + ends.copied / workers_[to].speed;
  for (const size_t other : on_worker_[to]) {
    const double share = Share(other);
    const double less = share / workers_[to].speed;
    const double moves = std::max(ends.least_moved, moved - less);
    const double swaps =
        std::max(moves, ends.worst_moved + share / workers_[worst].speed);
    if (Wanted(swaps) && !Has(other, worst)) {
      Consider(Changes({.expert = expert, .from = worst, .to = to},
                       {.expert = other, .from = to, .to = worst}),
               swaps);
    }
    if (holders_[other].size() == 1) continue;  // its only copy has to stay
    const double taken = TakenOver(other, to, worst);
    const double copies =
        std::max({ends.least_copied, copied - less, taken - ends.relief});
    if (Wanted(copies)) {
      Consider(Changes({.expert = expert, .from = kNone, .to = to},
                       {.expert = other, .from = to, .to = kNone}),
               copies);
    }
    const double leaves = std::max(moves, taken);
    if (Wanted(leaves)) {
      Consider(Changes({.expert = expert, .from = worst, .to = to},
                       {.expert = other, .from = to, .to = kNone}),
               leaves);
    }
  }
}

// Room at the second worker is made at the expense of a third. Only looked at
// when nothing simpler helps, and only among the workers with least to do: the
// number of such steps grows with the square of the workers.
void LayerSearch::ProposeThreeWay(size_t worst) {
  std::vector<size_t> lightest(workers_.size());
  std::iota(lightest.begin(), lightest.end(), 0);
  std::stable_sort(lightest.begin(), lightest.end(),
                   [&](size_t a, size_t b) { return time_[a] < time_[b]; });
  lightest.resize(std::min(lightest.size(), kThreeWayWorkers));
  for (const size_t expert : on_worker_[worst]) {
    if (layer_->load[expert] <= 0) continue;
    const Ends ends = EndsOf(expert, worst);
    for (const size_t to : lightest) {
      if (to == worst || Has(expert, to)) continue;
      ProposeThirds(expert, worst, to, ends, lightest);
    }
  }
}

void LayerSearch::ProposeThirds(size_t expert, size_t worst, size_t to,
                                const Ends& ends,
                                const std::vector<size_t>& lightest) {
  const double moved = time_[to] + ends.moved / workers_[to].speed;
  const double copied = time_[to] + ends.copied / workers_[to].speed;
  for (const size_t other : on_worker_[to]) {
    const double share = Share(other);
    const double less = share / workers_[to].speed;
    if (!Wanted(copied - less)) continue;  // a move brings it more than a copy
    for (const size_t third : lightest) {
      if (third == to || third == worst || Has(other, third)) continue;
      const double gains = time_[third] + share / workers_[third].speed;
      if (!Wanted(gains - ends.relief)) continue;
      const double moves = std::max({ends.least_moved, moved - less, gains});
      // The third may hold a copy of what is copied.
      const double copies =
          std::max({ends.least_copied, copied - less, gains - ends.relief});
      if (Wanted(moves)) {
        Consider(Changes({.expert = expert, .from = worst, .to = to},
                         {.expert = other, .from = to, .to = third}),
                 moves);
      }
      if (Wanted(copies)) {
        Consider(Changes({.expert = expert, .from = kNone, .to = to},
                         {.expert = other, .from = to, .to = third}),
                 copies);
      }
    }
  }
}

void LayerSearch::Consider(const Changes& changes, double peak_least) {
  const int64_t cost = Cost(changes);
  // Below the second slowest worker a lower peak wins nothing now; fewer bytes
  // do.
  if (best_ && best_->peak <= second_time_) {
    if (cost > best_->cost) return;
    if (cost == best_->cost && peak_least > best_->peak * (1 + kRounding))
      return;
  }
  const double peak = Peak(changes);
  if (peak >= worst_time_ * (1 - kLeastWin)) return;
  if (best_) {
    const auto key = [&](double one_peak, int64_t one_cost) {
      return std::tuple(std::max(one_peak, second_time_), one_cost, one_peak);
    };
    if (key(peak, cost) >= key(best_->peak, best_->cost)) return;
  }
  if (Allowed(changes))
    best_ = {.changes = changes, .peak = peak, .cost = cost};
}

double LayerSearch::Peak(const Changes& changes) {
  touched_.clear();
  const auto add = [&](size_t worker, double rows) {
    const double time = rows / workers_[worker].speed;
    const size_t at = touched_at_[worker];
    if (at < touched_.size() && touched_[at].first == worker) {
      touched_[at].second += time;
      return;
    }
    touched_at_[worker] = touched_.size();
    touched_.emplace_back(worker, time_[worker] + time);
  };
  for (const Change& change : changes) {
    const double load = layer_->load[change.expert];
    const auto& holders = holders_[change.expert];
    const double before = load / static_cast<double>(holders.size());
    const size_t count = holders.size() - (change.from != kNone ? 1 : 0) +
                         (change.to != kNone ? 1 : 0);
    if (count == 0) return worst_time_;  // the expert would be lost
    const double after = load / static_cast<double>(count);
    for (const size_t holder : holders) {
      add(holder, holder == change.from ? -before : after - before);
    }
    if (change.to != kNone) add(change.to, after);
  }
  double peak = 0;
  for (const auto& [worker, time] : touched_) peak = std::max(peak, time);
  return peak;
}

int64_t LayerSearch::Cost(const Changes& changes) const {
  const int64_t bytes = static_cast<int64_t>(layer_->expert_bytes);
  int64_t cost = 0;
  for (const Change& change : changes) {
    const auto free = [&](size_t worker) {
      return layer_->current.Has(change.expert, worker);
    };
    if (change.to != kNone && !free(change.to)) cost += bytes;
    // A copy that the search itself put there was counted: it need not go.
    if (change.from != kNone && !free(change.from)) cost -= bytes;
  }
  return cost;
}

bool LayerSearch::Allowed(const Changes& changes) const {
  const int64_t moved =
      static_cast<int64_t>(budget_->moved_bytes) + Cost(changes);
  if (moved > 0 && static_cast<uint64_t>(moved) > budget_->moved_bytes_max) {
    return false;
  }
  int64_t copies = copies_;
  for (const Change& change : changes) {
    if (!AllowedFor(change)) return false;
    copies += (change.to != kNone ? 1 : 0) - (change.from != kNone ? 1 : 0);
  }
  if (copies > std::max(layer_->copies_max, copies_)) return false;
  // Counts and bytes at each end, with all changes together.
  for (const Change& change : changes) {
    if (change.to == kNone) continue;
    const size_t to = change.to;
    int64_t count = static_cast<int64_t>(on_worker_[to].size());
    uint64_t final_bytes = budget_->final_bytes[to];
    uint64_t staged_bytes = budget_->staged_bytes[to];
    for (const Change& other : changes) {
      const bool held = layer_->held.Has(other.expert, to);
      if (other.from == to) {
        --count;
        final_bytes -= layer_->expert_bytes;
        if (!held) staged_bytes -= layer_->expert_bytes;
      }
      if (other.to == to) {
        ++count;
        final_bytes += layer_->expert_bytes;
        if (!held) staged_bytes += layer_->expert_bytes;
      }
    }
    if (count > std::max(layer_->worker_copies_max,
                         static_cast<int64_t>(on_worker_[to].size()))) {
      return false;
    }
    const uint64_t limit = workers_[to].memory_bytes;
    if (limit != 0 && (final_bytes > limit || staged_bytes > limit)) {
      return false;
    }
  }
  return true;
}

bool LayerSearch::AllowedFor(const Change& change) const {
  const auto& holders = holders_[change.expert];
  if (change.to == kNone) {
    return static_cast<int64_t>(holders.size()) > layer_->replicas_min;
  }
  // Two copies share a failure domain only when there is no other.
  size_t used = 0;
  bool shared = false;
  for (auto holder = holders.begin(); holder != holders.end(); ++holder) {
    if (*holder == change.from) continue;
    if (class_[*holder] != class_[change.to]) return false;
    shared = shared || domain_[*holder] == domain_[change.to];
    const bool again = std::any_of(holders.begin(), holder, [&](size_t h) {
      return h != change.from && domain_[h] == domain_[*holder];
    });
    if (!again) ++used;
  }
  return !shared || used >= domains_;
}

void LayerSearch::Apply(const Candidate& candidate) {
  for (const Change& change : candidate.changes) {
    if (change.to != kNone) Add(change.expert, change.to);
    if (change.from != kNone) Remove(change.expert, change.from);
  }
  budget_->moved_bytes = static_cast<uint64_t>(
      static_cast<int64_t>(budget_->moved_bytes) + candidate.cost);
  // Sums of differences drift; the few workers concerned are added up anew.
  for (const auto& change : candidate.changes) {
    for (const size_t holder : holders_[change.expert]) {
      touched_.emplace_back(holder, 0);
    }
    if (change.from != kNone) touched_.emplace_back(change.from, 0);
  }
  for (const auto& [worker, unused] : touched_) {
    double time = 0;
    for (const size_t e : on_worker_[worker]) {
      time += layer_->load[e] / static_cast<double>(holders_[e].size());
    }
    time_[worker] = time / workers_[worker].speed;
  }
}

void LayerSearch::Add(size_t expert, size_t worker) {
  has_.Insert(expert, worker);
  holders_[expert].push_back(worker);
  on_worker_[worker].push_back(expert);
  ++copies_;
  budget_->final_bytes[worker] += layer_->expert_bytes;
  if (!layer_->held.Has(expert, worker)) {
    budget_->staged_bytes[worker] += layer_->expert_bytes;
  }
}

void LayerSearch::Remove(size_t expert, size_t worker) {
  has_.Erase(expert, worker);
  std::erase(holders_[expert], worker);
  std::erase(on_worker_[worker], expert);
  --copies_;
  budget_->final_bytes[worker] -= layer_->expert_bytes;
  if (!layer_->held.Has(expert, worker)) {
    budget_->staged_bytes[worker] -= layer_->expert_bytes;
  }
}

}  // namespace trunkline::placement
