#include "coordinator/coordinator_host.h"

#include <algorithm>

#include "common/clock.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "control/status_to_grpc.h"

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

absl::Status NotLeading(const std::string& leader, const std::string& why) {
  absl::Status status =
      absl::UnavailableError("this coordinator does not lead: " + why);
  control::SetNotLeading(leader, &status);
  return status;
}

}  // namespace

CoordinatorHost::CoordinatorHost(RebalanceOptions rebalance,
                                 CoordinatorMetrics* metrics)
    : metrics_(metrics),
      rebalance_(rebalance),
      following_(NotLeading("", "it has not opened its store yet")) {}

CoordinatorHost::~CoordinatorHost() { Stop(); }

void CoordinatorHost::Start(Callbacks callbacks) {
  callbacks_ = std::move(callbacks);
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

void CoordinatorHost::Lead(std::unique_ptr<DurableCoordinator> coordinator,
                           std::function<absl::Time()> leads_until) {
  const std::lock_guard<std::mutex> lock(mutex_);
  coordinator_ = std::move(coordinator);
  leads_until_ = std::move(leads_until);
  following_ = absl::OkStatus();
  role_changed_ = view_changed_ = true;
  deposed_ = false;
  changed_.notify_all();
}

void CoordinatorHost::Follow(const std::string& leader,
                             const std::string& why) {
  std::unique_ptr<DurableCoordinator> over;  // closed without the lock
  const std::lock_guard<std::mutex> lock(mutex_);
  over = std::move(coordinator_);
  following_ = NotLeading(leader, why);
  role_changed_ = true;
  deposed_ = false;
  changed_.notify_all();
}

absl::Status CoordinatorHost::CheckLeading() const {
  if (coordinator_ == nullptr) return following_;
  if (deposed_ || Clock::Monotonic().Now() >= leads_until_()) {
    return NotLeading("", "its lease has run out");
  }
  return absl::OkStatus();
}

Reply CoordinatorHost::Submit(const Event& event, const char* method) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (absl::Status status = CheckLeading(); !status.ok()) {
    metrics_->OnRequest(method, status);
    return {.status = std::move(status), .body = EmptyReply()};
  }
  const uint64_t commits = coordinator_->commits();
  const uint64_t failures = coordinator_->commit_failures();
  const Moment moment = NowMoment();
  DurableCoordinator::Outcome outcome = coordinator_->Step(event, moment);
  Record(&outcome, commits, failures, moment.now);
  metrics_->OnRequest(method, outcome.reply.status);
  return std::move(outcome.reply);
}

// What is in memory may be answered: this coordinator leads by its lease, and
// the store has just said that nobody else does.
absl::Status CoordinatorHost::ConfirmLead() {
  TL_RETURN_IF_ERROR(CheckLeading());
  const Moment moment = NowMoment();
  DurableCoordinator::Outcome outcome = coordinator_->Confirm(moment);
  Record(&outcome, coordinator_->commits(), coordinator_->commit_failures(),
         moment.now);
  return outcome.reply.status;
}

absl::StatusOr<control::wire::ClusterView> CoordinatorHost::View() {
  const std::lock_guard<std::mutex> lock(mutex_);
  TL_RETURN_IF_ERROR(ConfirmLead());
  return control::ToProto(coordinator_->View());
}

absl::Status CoordinatorHost::Query(
    const std::function<void(const Coordinator&)>& query) {
  const std::lock_guard<std::mutex> lock(mutex_);
  TL_RETURN_IF_ERROR(ConfirmLead());
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
  if (coordinator_->deposed()) deposed_ = true;
  // A step that changed something may have moved the next deadline.
  if (outcome->view_changed || SomethingToTell()) changed_.notify_all();
}

absl::Time CoordinatorHost::NextTick() const {
  if (coordinator_ == nullptr || deposed_) return absl::InfiniteFuture();
  return coordinator_->NextDeadline();
}

void CoordinatorHost::TickIfDue() {
  const Moment moment = NowMoment();
  if (NextTick() > moment.now) return;
  const uint64_t commits = coordinator_->commits();
  const uint64_t failures = coordinator_->commit_failures();
  DurableCoordinator::Outcome outcome = coordinator_->Tick(moment);
  Record(&outcome, commits, failures, moment.now);
}

// True when it told something, which took the lock off.
bool CoordinatorHost::TellRole(std::unique_lock<std::mutex>& lock) {
  if (role_changed_) {
    role_changed_ = false;
    const absl::Status leads = following_;
    metrics_->OnRole(leads.ok());
    lock.unlock();
    if (callbacks_.on_role) callbacks_.on_role(leads);
    lock.lock();
    return true;
  }
  if (deposed_ && coordinator_ != nullptr) {
    std::unique_ptr<DurableCoordinator> over = std::move(coordinator_);
    following_ = NotLeading("", "another one has begun a later epoch");
    role_changed_ = true;
    deposed_ = false;  // told; it would be news for ever else
    lock.unlock();
    over.reset();
    if (callbacks_.on_deposed) callbacks_.on_deposed();
    lock.lock();
    return true;
  }
  return false;
}

void CoordinatorHost::Loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  absl::Time published = absl::InfinitePast();
  while (!stopping_) {
    TickIfDue();
    if (!notes_.empty()) {
      WriteNotes(lock);
      continue;  // much may have happened without the lock
    }
    if (TellRole(lock)) continue;
    const absl::Time now = Clock::Monotonic().Now();
    if (Publishable() && now - published >= kPublishPeriod) {
      published = now;
      Publish(lock);
      continue;
    }
    const bool pending = Publishable();
    const absl::Duration wait =
        pending ? kPublishPeriod : std::max(NextTick() - now, kTickPeriodLeast);
    changed_.wait_for(
        lock, absl::ToChronoNanoseconds(std::min(wait, kSleepMost)),
        [&] { return SomethingToTell() || Publishable() != pending; });
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
  view_changed_ = false;
  metrics_->OnView(plain);
  lock.unlock();
  callbacks_.on_view(view, plain.waiting_for.empty());
  lock.lock();
}

}  // namespace trunkline::coordinator
