#include "coordinator/coordinator_host.h"

#include <algorithm>

#include "common/clock.h"
#include "common/log.h"

namespace trunkline::coordinator {
namespace {

// A burst of joins becomes a few views instead of one per worker.
constexpr absl::Duration kPublishPeriod = absl::Milliseconds(5);
// Keeps a deadline that the core cannot meet from turning into a busy loop.
constexpr absl::Duration kTickPeriodLeast = absl::Milliseconds(5);
constexpr absl::Duration kSleepMost = absl::Seconds(60);

Moment NowMoment() {
  return {.now = Clock::Monotonic().Now(), .wall = absl::Now()};
}

}  // namespace

CoordinatorHost::CoordinatorHost(
    std::unique_ptr<DurableCoordinator> coordinator, RebalanceOptions rebalance,
    CoordinatorMetrics* metrics)
    : metrics_(metrics),
      rebalance_(rebalance),
      coordinator_(std::move(coordinator)) {}

CoordinatorHost::~CoordinatorHost() { Stop(); }

void CoordinatorHost::Start(OnView on_view) {
  on_view_ = std::move(on_view);
  thread_ = std::thread([this] { Loop(); });
  planner_ = std::thread([this] { PlanLoop(); });
}

void CoordinatorHost::Stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
    plan_changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  if (planner_.joinable()) planner_.join();
}

Reply CoordinatorHost::Submit(const Event& event, const char* method) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t commits = coordinator_->commits();
  const uint64_t failures = coordinator_->commit_failures();
  const Moment moment = NowMoment();
  DurableCoordinator::Outcome outcome = coordinator_->Step(event, moment);
  Record(&outcome, commits, failures, moment.now);
  metrics_->OnRequest(method, outcome.reply.status);
  return std::move(outcome.reply);
}

control::wire::ClusterView CoordinatorHost::View() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!coordinator_->stale()) return control::ToProto(coordinator_->View());
  return last_view_ ? *last_view_ : control::wire::ClusterView();
}

absl::Status CoordinatorHost::Query(
    const std::function<void(const Coordinator&)>& query) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (coordinator_->stale()) {
    return absl::UnavailableError("the placement store does not answer");
  }
  query(coordinator_->core());
  return absl::OkStatus();
}

void CoordinatorHost::Record(DurableCoordinator::Outcome* outcome,
                             uint64_t commits, uint64_t failures,
                             absl::Time began) {
  metrics_->OnStep(outcome->tally, coordinator_->commits() != commits,
                   coordinator_->commit_failures() != failures,
                   Clock::Monotonic().Now() - began);
  std::move(outcome->notes.begin(), outcome->notes.end(),
            std::back_inserter(notes_));
  if (outcome->view_changed) view_changed_ = true;
  if (outcome->plan_rebalance) {
    plan_wanted_ = true;
    plan_changed_.notify_all();
  }
  // A step that changed something may have moved the next deadline.
  if (outcome->view_changed || !notes_.empty()) changed_.notify_all();
}

void CoordinatorHost::Loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  absl::Time published = absl::InfinitePast();
  while (!stopping_) {
    const Moment moment = NowMoment();
    if (coordinator_->NextDeadline() <= moment.now) {
      const uint64_t commits = coordinator_->commits();
      const uint64_t failures = coordinator_->commit_failures();
      DurableCoordinator::Outcome outcome = coordinator_->Tick(moment);
      Record(&outcome, commits, failures, moment.now);
    }
    if (!notes_.empty()) {
      WriteNotes(lock);
      continue;  // much may have happened without the lock
    }
    if (Publishable() && moment.now - published >= kPublishPeriod) {
      published = moment.now;
      Publish(lock);
      continue;
    }
    absl::Duration wait =
        std::max(coordinator_->NextDeadline() - moment.now, kTickPeriodLeast);
    const bool pending = Publishable();
    if (pending) wait = kPublishPeriod;
    changed_.wait_for(
        lock, absl::ToChronoNanoseconds(std::min(wait, kSleepMost)), [&] {
          return stopping_ || !notes_.empty() || Publishable() != pending;
        });
  }
}

absl::StatusOr<RebalanceSnapshot> CoordinatorHost::Snapshot() {
  absl::StatusOr<RebalanceSnapshot> snapshot = absl::UnknownError("");
  const absl::Status status =
      Query([&](const Coordinator& core) { snapshot = TakeSnapshot(core); });
  return status.ok() ? std::move(snapshot) : status;
}

void CoordinatorHost::PlanLoop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    plan_changed_.wait(lock, [&] { return stopping_ || plan_wanted_; });
    if (stopping_) return;
    plan_wanted_ = false;
    lock.unlock();
    PlanRebalanceOnce();
    lock.lock();
  }
}

void CoordinatorHost::PlanRebalanceOnce() {
  const absl::StatusOr<RebalanceSnapshot> snapshot = Snapshot();
  if (!snapshot.ok()) return;  // a change has begun meanwhile
  const absl::StatusOr<placement::BalancePlan> plan =
      PlanRebalance(*snapshot, rebalance_);
  if (!plan.ok()) {
    TL_LOG_WARN("rebalance: {}", std::string(plan.status().message()));
    return;
  }
  TL_LOG_INFO("rebalance: {} ({} bytes to move, balancedness {:.3f} -> {:.3f})",
              plan->reason, plan->diff.bytes, plan->before.balancedness(),
              plan->after.balancedness());
  if (!plan->worthwhile) return;
  const Reply reply =
      Submit(ApplyEvent{.map = plan->map,
                        .origin = "rebalance",
                        .expected_active = snapshot->current.version},
             "Rebalance");
  if (!reply.status.ok()) {
    TL_LOG_WARN("rebalance: {}", std::string(reply.status.message()));
  }
}

void CoordinatorHost::WriteNotes(std::unique_lock<std::mutex>& lock) {
  std::vector<std::string> notes;
  notes.swap(notes_);
  lock.unlock();
  for (const std::string& note : notes) TL_LOG_INFO("{}", note);
  lock.lock();
}

// Builds the view under the lock, and tells about it without.
void CoordinatorHost::Publish(std::unique_lock<std::mutex>& lock) {
  const control::ClusterView plain = coordinator_->View();
  const SharedView view = std::make_shared<const control::wire::ClusterView>(
      control::ToProto(plain));
  last_view_ = view;
  view_changed_ = false;
  metrics_->OnView(plain);
  lock.unlock();
  on_view_(view, plain.waiting_for.empty());
  lock.lock();
}

}  // namespace trunkline::coordinator
