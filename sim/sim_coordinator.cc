#include "sim/sim_coordinator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "control/status_to_grpc.h"

namespace trunkline::sim {

using coordinator::DurableCoordinator;

namespace {

// As in coordinator_host.cc.
constexpr absl::Duration kPublishPeriod = absl::Milliseconds(5);
constexpr absl::Duration kTickPeriodLeast = absl::Milliseconds(5);

}  // namespace

SimCoordinator::SimCoordinator(World* world, Network* network, SimDisk* disk,
                               LeaderLease* lease, Place place,
                               const Options& options)
    : world_(world),
      network_(network),
      disk_(disk),
      lease_(lease),
      place_(place),
      options_(options),
      clock_(world,
             absl::Seconds(1000 + static_cast<int64_t>(world->Below(100000)))) {
  network_->SetAlive(place_, true);
  KeepLease();
}

SimCoordinator::~SimCoordinator() { *alive_ = false; }

coordinator::Moment SimCoordinator::At() const {
  return {.now = clock_.Now(), .wall = world_->now() + wall_offset_};
}

void SimCoordinator::JumpClock(absl::Duration monotonic, absl::Duration wall) {
  clock_.Jump(monotonic);
  wall_offset_ += wall;
  ScheduleTick();
}

void SimCoordinator::Mail(std::function<void()> work) {
  if (network_->paused(place_)) {
    held_mail_.push_back(std::move(work));
    return;
  }
  work();
}

void SimCoordinator::Resume() {
  while (!held_mail_.empty() && !network_->paused(place_)) {
    const std::function<void()> work = std::move(held_mail_.front());
    held_mail_.pop_front();
    work();
  }
}

void SimCoordinator::After(absl::Duration delay,
                           void (SimCoordinator::*what)()) {
  world_->After(delay, [this, alive = alive_, what] {
    if (!*alive) return;
    if (!network_->paused(place_)) {
      (this->*what)();
      return;
    }
    // When the process goes on, its timers and the calls that wait race.
    held_mail_.push_back([this, what] {
      After(world_->Between(absl::ZeroDuration(), absl::Milliseconds(20)),
            what);
    });
  });
}

SimDisk::Road SimCoordinator::RoadToStore() const {
  if (options_.alone) return SimDisk::Road::kOpen;
  if (network_->cut(place_, lease_->store)) return SimDisk::Road::kNoWayThere;
  return network_->cut(lease_->store, place_) ? SimDisk::Road::kNoWayBack
                                              : SimDisk::Road::kOpen;
}

// One request to the store: mine goes on, or nobody's becomes mine. It may
// arrive after this process has ended; the lease then runs out by itself.
void SimCoordinator::AskForLease() {
  if (!network_->cut(place_, lease_->store)) {
    const absl::Time asked = clock_.Now();
    const auto arrive = [this, asked, alive = alive_, world = world_,
                         network = network_, lease = lease_, place = place_,
                         term = term_, length = options_.leader_lease] {
      const bool over = world->now() >= lease->end;
      if (over) {
        *lease = {.store = lease->store,
                  .holder = place,
                  .created = lease->created + 1,
                  .end = world->now() + length};
      } else if (lease->holder == place && lease->created == term) {
        lease->end = world->now() + length;
      }
      const bool mine =
          over || (lease->holder == place && lease->created == term);
      const uint64_t answer = mine ? lease->created : 0;
      if (network->cut(lease->store, place)) return;
      world->After(network->Delay(lease->store, place),
                   [this, asked, alive, answer] {
                     if (!*alive) return;
                     Mail([this, asked, answer] { OnLease(asked, answer); });
                   });
    };
    world_->After(network_->Delay(place_, lease_->store), arrive);
  }
}

void SimCoordinator::KeepLease() {
  if (!options_.alone) {
    AskForLease();
  } else if (durable_ == nullptr) {
    Lead();
  }
  After(options_.leader_lease / 4, &SimCoordinator::KeepLease);
}

// As a follower's watch of the leader key tells it.
void SimCoordinator::OnVacancy() {
  if (durable_ == nullptr && !options_.alone)
    After(network_->Delay(lease_->store, place_), &SimCoordinator::AskForLease);
}

// term: this coordinator's, which the lease was held for when the store was
// asked; 0: it is another's.
void SimCoordinator::OnLease(absl::Time asked, uint64_t term) {
  if (term < term_ && term != 0) return;  // an answer that was overtaken
  if (term != term_ && durable_ != nullptr) StepDown("its term is over");
  term_ = term;
  if (term == 0) return;
  leads_until_ = std::max(leads_until_, asked + options_.leader_lease);
  if (durable_ == nullptr && clock_.Now() < leads_until_) Lead();
}

void SimCoordinator::StepDownIfDeposed() {
  if (durable_ != nullptr && durable_->deposed())
    StepDown("another coordinator leads");
}

void SimCoordinator::Lead() {
  auto store = disk_->Open([this] { return RoadToStore(); });
  if (!store.ok()) return;  // asked again with the next renewal
  auto durable =
      DurableCoordinator::Open(options_.core, *std::move(store), At());
  if (!durable.ok()) {
    world_->Trace(network_->name(place_), ": ",
                  std::string(durable.status().message()));
    return;
  }
  durable_ = *std::move(durable);
  ++terms_;
  world_->Trace(network_->name(place_), " leads, epoch ", disk_->epoch());
  published_ = durable_->View();
  ScheduleTick();
}

void SimCoordinator::StepDown(const std::string& why) {
  world_->Trace(network_->name(place_), " steps down: ", why);
  durable_.reset();
  watchers_.clear();
}

coordinator::Reply SimCoordinator::Submit(const coordinator::Event& event) {
  if (!leads()) {
    coordinator::Reply reply;
    reply.status = absl::UnavailableError("this coordinator does not lead");
    control::SetNotLeading("", &reply.status);
    return reply;
  }
  DurableCoordinator::Outcome outcome = durable_->Step(event, At());
  Take(&outcome);
  return std::move(outcome.reply);
}

void SimCoordinator::Take(DurableCoordinator::Outcome* outcome) {
  for (const std::string& note : outcome->notes)
    world_->Trace(network_->name(place_), ": ", note);
  if (outcome->tally.canary_mismatches > 0 && options_.on_mismatch)
    options_.on_mismatch();
  canary_rollbacks_ += static_cast<uint64_t>(outcome->tally.canary_rollbacks);
  if (durable_->deposed())
    After(absl::ZeroDuration(), &SimCoordinator::StepDownIfDeposed);
  if (outcome->plan_rebalance) {
    After(world_->Between(absl::Milliseconds(1), absl::Milliseconds(20)),
          &SimCoordinator::PlanRebalanceOnce);
  }
  if (outcome->view_changed && !publish_scheduled_) {
    publish_scheduled_ = true;
    After(kPublishPeriod, &SimCoordinator::Publish);
  }
  ScheduleTick();
}

void SimCoordinator::ScheduleTick() {
  if (durable_ == nullptr) return;
  const absl::Time deadline = durable_->NextDeadline();
  if (deadline == absl::InfiniteFuture()) return;
  const absl::Time at =
      std::max(clock_.ToWorld(deadline), world_->now() + kTickPeriodLeast);
  if (at >= tick_at_) return;
  tick_at_ = at;
  After(at - world_->now(), &SimCoordinator::Tick);
}

void SimCoordinator::Tick() {
  if (tick_at_ <= world_->now()) tick_at_ = absl::InfiniteFuture();
  if (durable_ == nullptr) return;
  if (durable_->NextDeadline() <= clock_.Now()) {
    DurableCoordinator::Outcome outcome = durable_->Tick(At());
    Take(&outcome);
  } else {
    ScheduleTick();
  }
}

void SimCoordinator::Publish() {
  publish_scheduled_ = false;
  if (durable_ == nullptr || durable_->stale()) return;
  published_ = durable_->View();
  if (world_->has(PlantedBug::kDrainedTooEarly)) {
    for (auto& worker : published_.workers) worker.drained = worker.draining;
  }
  if (options_.on_publish) options_.on_publish(published_);
  std::vector<uint64_t> streams;
  for (const auto& [stream, watcher] : watchers_) streams.push_back(stream);
  for (const uint64_t stream : streams) PumpWatcher(stream);
}

void SimCoordinator::PlanRebalanceOnce() {
  const auto snapshot = Snapshot();
  if (!snapshot.ok()) return;
  const auto plan = coordinator::PlanRebalance(*snapshot, options_.rebalance);
  if (!plan.ok() || !plan->worthwhile) return;
  const coordinator::Reply reply = Submit(
      coordinator::ApplyEvent{.map = plan->map,
                              .origin = "rebalance",
                              .expected_active = snapshot->current.version});
  world_->Trace("rebalance: ", reply.status.ToString());
}

absl::StatusOr<control::ClusterView> SimCoordinator::View() {
  if (!leads() || durable_->stale())
    return absl::UnavailableError("this coordinator has no view");
  return durable_->View();
}

absl::Status SimCoordinator::ConfirmLead() {
  if (!leads()) return absl::UnavailableError("this coordinator does not lead");
  DurableCoordinator::Outcome outcome = durable_->Confirm(At());
  Take(&outcome);
  return outcome.reply.status;
}

absl::StatusOr<coordinator::RebalanceSnapshot> SimCoordinator::Snapshot() {
  TL_RETURN_IF_ERROR(ConfirmLead());
  return coordinator::TakeSnapshot(durable_->core());
}

absl::Status SimCoordinator::OpenWatch(WorkerId worker, uint64_t incarnation,
                                       uint64_t cluster_id, Place watcher,
                                       uint64_t stream, OnView on_view) {
  if (!leads() || durable_->stale())
    return absl::UnavailableError("this coordinator has no view");
  const coordinator::Coordinator& core = durable_->core();
  const coordinator::Member* member = core.membership().Find(worker);
  if (cluster_id != core.cluster().cluster_id || member == nullptr ||
      member->record.incarnation != incarnation) {
    return absl::NotFoundError("the watcher is not registered");
  }
  watchers_[stream] = {.place = watcher, .on_view = std::move(on_view)};
  published_ = durable_->View();
  PumpWatcher(stream);
  return absl::OkStatus();
}

// Sends the newest view unless the watcher has it. A view that can not pass
// waits in the connection, and only the newest is worth it.
void SimCoordinator::PumpWatcher(uint64_t stream) {
  const auto found = watchers_.find(stream);
  if (found == watchers_.end()) return;
  Watcher& watcher = found->second;
  if (std::pair(watcher.sent_epoch, watcher.sent_revision) >=
      std::pair(published_.epoch, published_.revision))
    return;
  if (network_->cut(place_, watcher.place)) {
    world_->After(absl::Milliseconds(100), [this, alive = alive_, stream] {
      if (*alive) PumpWatcher(stream);
    });
    return;
  }
  watcher.sent_epoch = published_.epoch;
  watcher.sent_revision = published_.revision;
  watcher.last_ready =
      std::max(watcher.last_ready,
               world_->now() + network_->Delay(place_, watcher.place));
  world_->At(watcher.last_ready, [on_view = watcher.on_view,
                                  view = std::make_shared<control::ClusterView>(
                                      published_)] { on_view(*view); });
}

}  // namespace trunkline::sim
