#include "coordinator/coordinator.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/planted_mistake.h"
#include "common/status_macros.h"
#include "coordinator/cluster_model.h"
#include "coordinator/readiness.h"

namespace trunkline::coordinator {
namespace {

Reply Done(ReplyBody body = EmptyReply()) {
  return {.status = absl::OkStatus(), .body = std::move(body)};
}

Reply Refused(absl::Status status) {
  return {.status = std::move(status), .body = EmptyReply()};
}

Reply NotJoined(absl::Status status, DriverContext& context) {
  // Whoever restarts is told so once, and asks again.
  if (!absl::IsAborted(status)) {
    context.notes.push_back(
        absl::StrCat("refused: ", std::string(status.message())));
    ++context.tally.registrations_refused;
  }
  return Refused(std::move(status));
}

Reply Started(absl::StatusOr<PlacementVersion> version) {
  if (!version.ok()) return Refused(version.status());
  return Done(ChangeReply{.version = *version});
}

}  // namespace

absl::Status CoreOptions::Validate() const {
  const auto invalid = [](const char* option, const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat(option, " ", what));
  };
  if (driver.expert_workers < 1) {
    return invalid("expert_workers",
                   absl::StrCat("is ", driver.expert_workers, ", at least 1"));
  }
  if (driver.replicas < 1 || driver.replicas > driver.expert_workers) {
    return invalid("replicas",
                   absl::StrCat("is ", driver.replicas, "; with ",
                                driver.expert_workers, " expert workers 1 to ",
                                driver.expert_workers, " are possible"));
  }
  const std::pair<const char*, absl::Duration> durations[] = {
      {"lease", membership.lease},
      {"forget_after", membership.forget_after},
      {"stage_timeout", driver.stage_timeout},
      {"trunk_grace", driver.trunk_grace},
      {"repair_delay", driver.repair_delay},
      {"redundancy_delay", driver.redundancy_delay},
      {"retry_delay", driver.retry_delay},
      {"load_half_life", load_half_life}};
  for (const auto& [name, duration] : durations) {
    if (duration <= absl::ZeroDuration()) {
      return invalid(name,
                     "is " + absl::FormatDuration(duration) + ", above zero");
    }
  }
  if (rebalance_interval < absl::ZeroDuration()) {
    return invalid("rebalance_interval",
                   "is " + absl::FormatDuration(rebalance_interval));
  }
  if (membership.lease < absl::Milliseconds(100) ||
      membership.lease > absl::Hours(1)) {
    return invalid("lease", "is " + absl::FormatDuration(membership.lease) +
                                ", 100ms to 1h are possible");
  }
  return absl::OkStatus();
}

Coordinator::Coordinator(CoreOptions options, const StoreContents& contents,
                         uint64_t first_revision, Moment moment)
    : options_(options),
      cluster_(contents.cluster),
      membership_(options.membership, contents.workers, moment.now),
      driver_(options.driver, contents, first_revision),
      loads_(options.load_half_life),
      rebalance_at_(moment.now + options.rebalance_interval),
      revision_(first_revision) {}

Actions Coordinator::Step(const Event& event, Moment moment) {
  return Run(&event, moment);
}

Actions Coordinator::Tick(Moment moment) { return Run(nullptr, moment); }

Actions Coordinator::Run(const Event* event, Moment moment) {
  Actions actions;
  bool cluster_changed = false;
  DriverContext context{.cluster = cluster_,
                        .cluster_changed = cluster_changed,
                        .membership = membership_,
                        .moment = moment,
                        .next_revision = revision_ + 1,
                        .notes = actions.notes,
                        .tally = actions.tally};
  // Leases end before the event counts: a heartbeat that comes too late must
  // not bring back what a tick would already have taken.
  for (const WorkerId worker : membership_.Expire(moment.now)) {
    actions.notes.push_back(absl::StrCat(
        "worker '", membership_.Find(worker)->name(), "' lost its lease"));
    ++actions.tally.leases_lost;
  }
  bool asked = false;
  if (event != nullptr) {
    actions.reply =
        std::visit([&](const auto& e) { return Handle(e, context); }, *event);
    // A heartbeat only matters if it said something new; see Settle.
    asked = !std::holds_alternative<HeartbeatEvent>(*event) ||
            actions.tally.canary_mismatches > 0;
  }
  Settle(asked || cluster_changed, context, &actions);
  actions.plan_rebalance = RebalanceIsDue(moment.now);
  Collect(cluster_changed, &actions);
  return actions;
}

bool Coordinator::RebalanceIsDue(absl::Time now) {
  if (options_.rebalance_interval == absl::ZeroDuration()) return false;
  if (now < rebalance_at_) return false;
  rebalance_at_ = now + options_.rebalance_interval;
  return !cluster_.pinned && !loads_.empty() && driver_.Active() != nullptr &&
         driver_.OpenChange() == nullptr;
}

void Coordinator::Settle(bool forced, DriverContext& context,
                         Actions* actions) {
  if (!forced && membership_.generation() == settled_generation_ &&
      context.moment.now < settle_at_) {
    return;
  }
  driver_.Advance(context);
  membership_.KeepReportsOf(driver_.LiveVersions());
  actions->change.forgotten_workers =
      membership_.Forget(driver_.NamedWorkers(), context.moment.now);
  settled_generation_ = membership_.generation();
  settle_at_ = std::min(driver_.next_deadline(),
                        membership_.NextForget(context.moment.now));
}

void Coordinator::Collect(bool cluster_changed, Actions* actions) {
  actions->change.workers = membership_.TakeChanged();
  driver_.TakeChanges(&actions->change);
  actions->view_changed =
      !actions->change.workers.empty() || !actions->change.placements.empty() ||
      !actions->change.forgotten_workers.empty() || cluster_changed;
  if (cluster_changed) actions->change.cluster = cluster_;
  if (actions->view_changed) ++revision_;
}

Reply Coordinator::Handle(const RegisterEvent& event, DriverContext& context) {
  const control::Registration& registration = event.registration;
  if (absl::Status status = control::ValidateRegistration(registration);
      !status.ok()) {
    return Refused(std::move(status));
  }
  bool model_changed = false;
  absl::Status status = membership_.CheckAdmission(registration);
  if (status.ok())
    status = AdmitToModel(registration, options_.numerics_class,
                          &cluster_.model, &model_changed);
  if (!status.ok()) return NotJoined(std::move(status), context);
  const uint32_t next_worker = cluster_.next_worker;
  const uint64_t before = membership_.generation();
  const absl::StatusOr<WorkerId> joined = membership_.Register(
      registration, context.moment.now, &cluster_.next_worker);
  if (model_changed || next_worker != cluster_.next_worker) {
    context.cluster_changed = true;
  }
  if (!joined.ok()) return NotJoined(joined.status(), context);
  const WorkerId worker = *joined;
  const uint64_t incarnation = membership_.Find(worker)->record.incarnation;
  // Nothing has changed when a request of the same process comes again.
  if (membership_.generation() != before) {
    ++context.tally.registered;
    context.notes.push_back(absl::StrCat(
        control::Name(registration.role), " worker '", registration.name,
        "' joined as ", worker.value, ", incarnation ", incarnation));
  }
  return Done(RegisterReply{.identity = {.worker = worker,
                                         .incarnation = incarnation,
                                         .epoch = cluster_.epoch,
                                         .cluster_id = cluster_.cluster_id},
                            .lease = options_.membership.lease});
}

Reply Coordinator::Handle(const HeartbeatEvent& event, DriverContext& context) {
  const control::Heartbeat& heartbeat = event.heartbeat;
  if (absl::Status status = CheckCluster(heartbeat.cluster_id); !status.ok()) {
    return Refused(std::move(status));
  }
  if (absl::Status status = CheckLoads(heartbeat.report); !status.ok()) {
    return Refused(std::move(status));
  }
  if (absl::Status status = membership_.Renew(heartbeat, driver_.LiveVersions(),
                                              context.moment.now);
      !status.ok()) {
    return Refused(std::move(status));
  }
  loads_.Add(heartbeat.report.loads, context.moment.now);
  TakeCanary(heartbeat, context);
  return Done(HeartbeatReply{.epoch = cluster_.epoch});
}

void Coordinator::TakeCanary(const control::Heartbeat& heartbeat,
                             DriverContext& context) {
  const PlacementRecord* active = driver_.Active();
  if (!heartbeat.report.canary.has_value() || active == nullptr) return;
  const std::optional<AccuracyGate::Mismatch> mismatch =
      accuracy_.OnResult(membership_.Find(heartbeat.worker)->name(),
                         *heartbeat.report.canary, active->map.version);
  if (!mismatch.has_value()) return;
  ++context.tally.canary_mismatches;
  context.notes.push_back(absl::StrCat("ACCURACY: ", mismatch->detail));
  const absl::Status back = GoBackTo(*mismatch, context);
  if (back.ok()) {
    ++context.tally.canary_rollbacks;
  } else {
    context.notes.push_back(
        absl::StrCat("ACCURACY: version ", mismatch->bad.value,
                     " stays active, version ", mismatch->good.value,
                     " can not be had back: ", std::string(back.message())));
  }
}

absl::Status Coordinator::GoBackTo(const AccuracyGate::Mismatch& mismatch,
                                   DriverContext& context) {
  const PlacementRecord* target = driver_.Find(mismatch.good);
  if (target == nullptr) {
    return absl::NotFoundError("it is too old to be kept");
  }
  // Whatever is being staged was thought out from the wrong version.
  if (const PlacementRecord* open = driver_.OpenChange(); open != nullptr) {
    TL_RETURN_IF_ERROR(driver_.Abandon(
        open->map.version,
        absl::StrCat("version ", mismatch.bad.value, " failed the canary"),
        context));
  }
  return driver_
      .Propose(target->map,
               absl::StrCat("rollback to ", mismatch.good.value, ": version ",
                            mismatch.bad.value, " failed the canary"),
               context)
      .status();
}

absl::Status Coordinator::CheckCluster(uint64_t cluster_id) const {
  if (cluster_id == cluster_.cluster_id) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("registered in cluster ", cluster_id,
                                          ", this one is ",
                                          cluster_.cluster_id));
}

absl::Status Coordinator::CheckLoads(const control::Report& report) const {
  for (const control::ExpertLoadReport& load : report.loads) {
    const placement::MoeLayerShape* shape = nullptr;
    if (cluster_.model) {
      for (const auto& s : cluster_.model->moe_layers) {
        if (s.layer == load.layer) shape = &s;
      }
    }
    if (shape == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("loads: layer ", load.layer.value, " is no moe layer"));
    }
    const size_t experts = static_cast<size_t>(shape->experts);
    if (load.selected.size() != experts || load.executed.size() != experts) {
      return absl::InvalidArgumentError(absl::StrCat(
          "loads: layer ", load.layer.value, " counts ", load.selected.size(),
          " selected and ", load.executed.size(), " executed of ", experts,
          " experts"));
    }
  }
  return absl::OkStatus();
}

Reply Coordinator::Handle(const LeaveEvent& event, DriverContext& context) {
  if (absl::Status status = CheckCluster(event.cluster_id); !status.ok()) {
    return Refused(std::move(status));
  }
  if (absl::Status status = membership_.Leave(event.worker, event.incarnation,
                                              context.moment.now);
      !status.ok()) {
    return Refused(std::move(status));
  }
  context.notes.push_back(absl::StrCat(
      "worker '", membership_.Find(event.worker)->name(), "' left"));
  return Done();
}

Reply Coordinator::Handle(const ApplyEvent& event, DriverContext& context) {
  const PlacementRecord* active = driver_.Active();
  const PlacementVersion found =
      active == nullptr ? PlacementVersion() : active->map.version;
  if (event.expected_active.valid() && event.expected_active != found) {
    return Refused(absl::FailedPreconditionError(
        absl::StrCat("the change was made against placement version ",
                     event.expected_active.value, ", active is ",
                     found.valid() ? absl::StrCat(found.value) : "none")));
  }
  return Started(driver_.Propose(event.map, event.origin, context));
}

Reply Coordinator::Handle(const RollbackEvent& event, DriverContext& context) {
  const PlacementRecord* target =
      event.version.valid() ? driver_.Find(event.version) : driver_.Previous();
  if (target == nullptr) {
    return Refused(absl::NotFoundError(
        event.version.valid()
            ? absl::StrCat("placement version ", event.version.value,
                           " is not known, or too old to be kept")
            : "no placement version was active before this one"));
  }
  const std::string origin =
      absl::StrCat("rollback to ", target->map.version.value);
  return Started(driver_.Propose(target->map, origin, context));
}

Reply Coordinator::Handle(const AbandonEvent& event, DriverContext& context) {
  if (absl::Status status =
          driver_.Abandon(event.version, event.reason, context);
      !status.ok()) {
    return Refused(std::move(status));
  }
  return Done();
}

Reply Coordinator::Handle(const PinEvent& event, DriverContext& context) {
  cluster_.pinned = event.pinned;
  cluster_.pin_reason = event.pinned ? event.reason : "";
  context.cluster_changed = true;
  context.notes.push_back(event.pinned
                              ? "the placement is pinned: " + event.reason
                              : "the placement is not pinned any more");
  return Done();
}

Reply Coordinator::Handle(const DrainEvent& event, DriverContext& context) {
  if (absl::Status status = membership_.SetCordoned(event.worker, event.drain,
                                                    context.next_revision);
      !status.ok()) {
    return Refused(std::move(status));
  }
  context.notes.push_back(
      absl::StrCat("worker '", event.worker, "' is ",
                   event.drain ? "to be drained" : "back in service"));
  return Done();
}

Reply Coordinator::Handle(const RecordEvent& event, DriverContext& context) {
  if (event.start) {
    loads_.StartRecording(context.moment.now);
  } else {
    loads_.StopRecording(context.moment.now);
  }
  return Done();
}

absl::Time Coordinator::NextDeadline() const {
  const absl::Time next = std::min(membership_.NextExpiry(), settle_at_);
  return options_.rebalance_interval == absl::ZeroDuration()
             ? next
             : std::min(next, rebalance_at_);
}

control::ClusterView Coordinator::View() const {
  control::ClusterView view;
  view.cluster_id = cluster_.cluster_id;
  view.epoch = cluster_.epoch;
  view.revision = revision_;
  view.numerics_class = options_.numerics_class;
  if (cluster_.model) {
    view.model_digest = cluster_.model->model_digest;
    view.numerics_class = cluster_.model->numerics_class;
    view.moe_layers = cluster_.model->moe_layers;
  }
  const std::set<WorkerId> named = driver_.NamedWorkers();
  for (const auto& [id, member] : membership_.members()) {
    const control::Registration& registration = member.record.registration;
    control::WorkerView worker;
    worker.id = id;
    worker.name = registration.name;
    worker.role = registration.role;
    worker.incarnation = member.record.incarnation;
    worker.alive = member.alive();
    worker.data_address = registration.data_address;
    worker.api_address = registration.api_address;
    worker.metrics_address = registration.metrics_address;
    worker.numerics_class = registration.numerics_class;
    worker.failure_domain = registration.failure_domain;
    worker.memory_bytes = registration.memory_bytes;
    worker.speed = registration.speed;
    worker.costs = member.costs;
    worker.versions = member.record.versions;
    worker.draining = member.draining();
    worker.drained =
        member.draining() &&
        (member.is(control::Role::kExpert)
             ? named.count(id) == 0
             : !member.alive() ||
                   (TL_PLANTED(kRestIsIdleNow) &&
                    !member.oldest_in_flight.valid()) ||
                   (member.at_rest && member.followed_epoch == cluster_.epoch &&
                    member.followed_revision >= member.draining_since));
    view.workers.push_back(std::move(worker));
  }
  for (const auto& [version, record] : driver_.records()) {
    if (placement::IsFinal(record.state)) continue;
    view.placements.push_back({.map = record.map, .state = record.state});
    if (record.state == placement::VersionState::kActive) view.active = version;
  }
  view.waiting_for = WaitingFor(cluster_, membership_, driver_);
  return view;
}

}  // namespace trunkline::coordinator
