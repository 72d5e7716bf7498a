#include "coordinator/placement_driver.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/planted_mistake.h"
#include "common/status_macros.h"
#include "coordinator/readiness.h"
#include "placement/placement_diff.h"
#include "placement/repair.h"

namespace trunkline::coordinator {

using placement::IsFinal;
using placement::IsOpen;
using placement::PlacementMap;
using placement::VersionState;

namespace {

// Slots do not matter here: the same owners need no change.
bool SameOwners(const PlacementMap& a, const PlacementMap& b) {
  const auto same_workers = [](const std::vector<placement::Replica>& x,
                               const std::vector<placement::Replica>& y) {
    return std::equal(
        x.begin(), x.end(), y.begin(), y.end(),
        [](const placement::Replica& r, const placement::Replica& s) {
          return r.worker == s.worker;
        });
  };
  return std::equal(
      a.layers.begin(), a.layers.end(), b.layers.begin(), b.layers.end(),
      [&](const placement::LayerPlacement& x,
          const placement::LayerPlacement& y) {
        return x.layer == y.layer &&
               std::equal(x.replicas.begin(), x.replicas.end(),
                          y.replicas.begin(), y.replicas.end(), same_workers);
      });
}

}  // namespace

PlacementDriver::PlacementDriver(DriverOptions options,
                                 const StoreContents& contents,
                                 uint64_t first_revision)
    : options_(options),
      first_revision_(first_revision),
      history_(contents.history) {
  for (const PlacementRecord& record : contents.placements) {
    records_.emplace(record.map.version, record);
  }
}

absl::StatusOr<PlacementVersion> PlacementDriver::Propose(
    PlacementMap map, const std::string& origin, DriverContext& context) {
  if (const PlacementRecord* open = OpenChange(); open != nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "placement version ", open->map.version.value, " (", open->origin,
        ") is ", Name(open->state), "; one change at a time"));
  }
  if (!context.cluster.model) {
    return absl::FailedPreconditionError(
        "no worker has registered: the model is not known");
  }
  const PlacementRecord* active = Active();
  if (active != nullptr && SameOwners(active->map, map)) {
    return absl::AlreadyExistsError(
        absl::StrCat("placement version ", active->map.version.value,
                     " is active and has these owners"));
  }
  map.version = PlacementVersion(context.cluster.next_version);
  const auto& shapes = context.cluster.model->moe_layers;
  const auto workers = context.membership.UsableExperts();
  TL_RETURN_IF_ERROR(placement::ValidatePlacement(map, shapes));
  TL_RETURN_IF_ERROR(placement::ValidateAgainstWorkers(map, shapes, workers));
  TL_RETURN_IF_ERROR(
      placement::ValidateStaging(HeldMaps(), map, shapes, workers));
  ++context.cluster.next_version;
  context.cluster_changed = true;
  const PlacementVersion version = map.version;
  PlacementRecord record;
  record.map = std::move(map);
  record.origin = origin;
  if (active != nullptr) record.replaces = active->map.version;
  PlacementRecord* stored =
      &records_.emplace(version, std::move(record)).first->second;
  Move(stored, VersionState::kProposed, origin, context);
  return version;
}

absl::Status PlacementDriver::Abandon(PlacementVersion version,
                                      const std::string& reason,
                                      DriverContext& context) {
  const auto found = records_.find(version);
  if (found == records_.end()) {
    return absl::NotFoundError(
        absl::StrCat("no placement version ", version.value));
  }
  TL_RETURN_IF_ERROR(placement::CheckTransition(version, found->second.state,
                                                VersionState::kAbandoned));
  AbandonRecord(&found->second, reason, context);
  return absl::OkStatus();
}

void PlacementDriver::Advance(DriverContext& context) {
  next_deadline_ = absl::InfiniteFuture();
  // Each round moves one version forward or starts one; a version has few
  // states, so this ends.
  while (AdvanceOpen(context) || RetireDrained(context) ||
         ProposeFirst(context) || ProposeRepair(context)) {
    next_deadline_ = absl::InfiniteFuture();
  }
  DropOldRecords();
}

bool PlacementDriver::AdvanceOpen(DriverContext& context) {
  PlacementRecord* record = MutableOpen();
  if (record == nullptr) return false;
  switch (record->state) {
    case VersionState::kProposed:
      BeginStaging(*record, context);
      Move(record, VersionState::kStaging, "workers load what they lack",
           context);
      return true;
    case VersionState::kStaging:
      return AdvanceStaging(record, context);
    case VersionState::kReady:
      Activate(record, context);
      return true;
    default:
      TL_CHECK(false) << "version " << record->map.version << " is "
                      << Name(record->state) << " and not open";
      return false;
  }
}

bool PlacementDriver::AdvanceStaging(PlacementRecord* record,
                                     DriverContext& context) {
  if (stage_deadline_ == absl::InfiniteFuture()) {  // after a restart
    BeginStaging(*record, context);
  }
  const PlacementVersion version = record->map.version;
  std::string waiting;
  for (const WorkerId worker : record->map.Workers()) {
    const Member* member = context.membership.Find(worker);
    if (member == nullptr || !member->alive()) {
      AbandonRecord(record, WhyNotReady(context.membership, worker, version),
                    context);
      return true;
    }
    // With nothing older to serve there is nothing to fall back to: the first
    // placement waits for the worker's new process instead.
    if (record->replaces.valid() &&
        staging_incarnations_[worker] != member->record.incarnation) {
      AbandonRecord(
          record,
          WorkerLabel(context.membership, worker) + " restarted meanwhile",
          context);
      return true;
    }
    const control::VersionReport* report = member->FindReport(version);
    if (report != nullptr && report->state == control::ShardState::kFailed) {
      if (TL_PLANTED(kKeepFailedStaging)) continue;
      AbandonRecord(record, WhyNotReady(context.membership, worker, version),
                    context);
      return true;
    }
    if (waiting.empty() && !member->ready(version)) {
      waiting = WhyNotReady(context.membership, worker, version);
    }
  }
  if (waiting.empty()) {
    MeasureStaging(context.moment.now);
    Move(record, VersionState::kReady, "every worker has reported", context);
    return true;
  }
  if (context.moment.now >= stage_deadline_) {
    AbandonRecord(record,
                  absl::StrCat("not ready after ",
                               absl::FormatDuration(options_.stage_timeout),
                               ": ", waiting),
                  context);
    return true;
  }
  WakeAt(stage_deadline_, context);
  return false;
}

void PlacementDriver::Activate(PlacementRecord* record,
                               DriverContext& context) {
  // Both transitions are one change of the store: there is never a moment
  // without an active version, nor one with two.
  if (PlacementRecord* old = MutableActive(); old != nullptr) {
    drained_since_[old->map.version] = context.next_revision;
    Move(old, VersionState::kDraining,
         absl::StrCat("version ", record->map.version.value, " takes over"),
         context);
  }
  Move(record, VersionState::kActive, record->origin, context);
  last_failure_.clear();
}

bool PlacementDriver::RetireDrained(DriverContext& context) {
  bool retired = false;
  for (auto& [version, record] : records_) {
    if (record.state != VersionState::kDraining) continue;
    bool in_use = false;
    for (const auto& [id, member] : context.membership.members()) {
      if (!member.is(control::Role::kTrunk)) continue;
      if (TrunkMayUse(member, record, context)) in_use = true;
    }
    if (in_use) continue;
    Move(&record, VersionState::kRetired, "no step is in flight under it",
         context);
    drained_since_.erase(version);
    retired = true;
  }
  return retired;
}

bool PlacementDriver::TrunkMayUse(const Member& trunk,
                                  const PlacementRecord& record,
                                  DriverContext& context) {
  if (trunk.record.left) return false;
  if (!trunk.alive()) {
    const absl::Time end = trunk.lost_at + options_.trunk_grace;
    if (context.moment.now >= end) return false;
    WakeAt(end, context);
    return true;
  }
  // An idle trunk that has not seen the new version yet would start its next
  // step under the old one.
  const auto since = drained_since_.find(record.map.version);
  const uint64_t revision =
      since == drained_since_.end() ? first_revision_ : since->second;
  if (trunk.followed_epoch != context.cluster.epoch ||
      trunk.followed_revision < revision) {
    return true;
  }
  return trunk.oldest_in_flight.valid() && !TL_PLANTED(kRetireUnderSteps) &&
         trunk.oldest_in_flight <= record.map.version;
}

bool PlacementDriver::ProposeFirst(DriverContext& context) {
  if (Active() != nullptr || OpenChange() != nullptr) return false;
  if (!context.cluster.model) return false;
  const auto& shapes = context.cluster.model->moe_layers;
  const auto workers = context.membership.UsableExperts();
  PlacementMap map;
  if (!shapes.empty()) {
    if (static_cast<int64_t>(workers.size()) < options_.expert_workers) {
      return false;
    }
    std::vector<WorkerId> ids;
    for (const auto& profile : workers) ids.push_back(profile.worker);
    absl::StatusOr<PlacementMap> first = placement::InitialPlacement(
        PlacementVersion(), shapes, std::move(ids), options_.replicas);
    if (!first.ok()) {
      last_failure_ = std::string(first.status().message());
      return false;
    }
    map = *std::move(first);
  }
  return ProposeOwn(std::move(map), "initial", context);
}

// Alive, and still unable to serve: its disk or its checkpoint is damaged.
bool PlacementDriver::FailedToLoad(const Member& member) const {
  const control::VersionReport* report =
      member.FindReport(Active()->map.version);
  return report != nullptr && report->state == control::ShardState::kFailed;
}

bool PlacementDriver::RepairNeeded(DriverContext& context) {
  bool somebody_dead = false;
  for (const WorkerId worker : Active()->map.Workers()) {
    const Member* member = context.membership.Find(worker);
    if (member != nullptr && member->alive()) {
      if (member->draining()) return true;
      if (!context.cluster.pinned && FailedToLoad(*member)) return true;
      continue;
    }
    if (context.cluster.pinned) continue;
    somebody_dead = true;
    const absl::Time repair_at =
        member == nullptr ? absl::InfinitePast()
                          : member->lost_at + options_.redundancy_delay;
    if (context.moment.now >= repair_at) return true;
    WakeAt(repair_at, context);
  }
  return somebody_dead && ExpertsAreLost(context);
}

// Some expert has been without a live owner for longer than a worker may take
// to come back.
bool PlacementDriver::ExpertsAreLost(DriverContext& context) {
  const auto lost_at = [&](WorkerId worker) {
    const Member* member = context.membership.Find(worker);
    if (member == nullptr) return absl::InfinitePast();
    return member->alive() ? absl::InfiniteFuture() : member->lost_at;
  };
  for (const placement::LayerPlacement& layer : Active()->map.layers) {
    for (const std::vector<placement::Replica>& replicas : layer.replicas) {
      absl::Time last = absl::InfinitePast();
      for (const placement::Replica& replica : replicas) {
        last = std::max(last, lost_at(replica.worker));
      }
      if (last == absl::InfiniteFuture()) continue;  // somebody has it
      if (context.moment.now >= last + options_.repair_delay) return true;
      WakeAt(last + options_.repair_delay, context);
    }
  }
  return false;
}

bool PlacementDriver::ProposeRepair(DriverContext& context) {
  blocked_.clear();
  if (Active() == nullptr || OpenChange() != nullptr) return false;
  if (!RepairNeeded(context)) return false;
  auto workers = context.membership.UsableExperts();
  std::erase_if(workers, [&](const placement::WorkerProfile& profile) {
    return FailedToLoad(*context.membership.Find(profile.worker));
  });
  absl::StatusOr<placement::RepairResult> repair = placement::RepairPlacement(
      Active()->map, context.cluster.model->moe_layers, workers, HeldMaps());
  if (!repair.ok()) {
    blocked_ = std::string(repair.status().message());
    return false;
  }
  if (!repair->changed) return false;
  return ProposeOwn(std::move(repair->map), "repair", context);
}

bool PlacementDriver::ProposeOwn(PlacementMap map, const std::string& origin,
                                 DriverContext& context) {
  if (context.moment.now < retry_at_) {
    WakeAt(retry_at_, context);
    return false;
  }
  const absl::StatusOr<PlacementVersion> version =
      Propose(std::move(map), origin, context);
  if (version.ok()) return true;
  (Active() == nullptr ? last_failure_ : blocked_) =
      std::string(version.status().message());
  return false;
}

void PlacementDriver::Move(PlacementRecord* record, VersionState to,
                           const std::string& detail, DriverContext& context) {
  const PlacementVersion version = record->map.version;
  if (to != VersionState::kProposed) {
    TL_CHECK(placement::IsLegalTransition(record->state, to))
        << "version " << version << ": " << Name(record->state) << " to "
        << Name(to);
  }
  record->state = to;
  changed_.insert(version);
  HistoryRecord entry{.sequence = context.cluster.next_history++,
                      .at = context.moment.wall,
                      .version = version,
                      .state = to,
                      .detail = detail};
  context.cluster_changed = true;
  context.notes.push_back(absl::StrCat("placement version ", version.value,
                                       " is ", Name(to), ": ", detail));
  new_history_.push_back(entry);
  history_.push_back(std::move(entry));
  if (to == VersionState::kActive) ++context.tally.activated;
  if (to == VersionState::kAbandoned) ++context.tally.abandoned;
  if (to == VersionState::kRetired) ++context.tally.retired;
  if (!IsOpen(to)) stage_deadline_ = absl::InfiniteFuture();
}

void PlacementDriver::AbandonRecord(PlacementRecord* record,
                                    const std::string& reason,
                                    DriverContext& context) {
  record->reason = reason;
  last_failure_ = absl::StrCat("placement version ", record->map.version.value,
                               " was abandoned: ", reason);
  retry_at_ = context.moment.now + options_.retry_delay;
  Move(record, VersionState::kAbandoned, reason, context);
}

void PlacementDriver::BeginStaging(const PlacementRecord& record,
                                   DriverContext& context) {
  stage_deadline_ = context.moment.now + options_.stage_timeout;
  stage_began_ = context.moment.now;
  staging_incarnations_.clear();
  for (const WorkerId worker : record.map.Workers()) {
    const Member* member = context.membership.Find(worker);
    staging_incarnations_[worker] =
        member != nullptr ? member->record.incarnation : 0;
  }
  stage_bytes_most_ = 0;
  const PlacementRecord* active = Active();
  const absl::StatusOr<placement::PlacementDiff> diff =
      placement::DiffPlacements(
          active != nullptr ? active->map : PlacementMap(), record.map,
          context.cluster.model->moe_layers);
  TL_CHECK(diff.ok()) << diff.status();
  for (const auto& [worker, bytes] : diff->bytes_by_worker) {
    stage_bytes_most_ = std::max(stage_bytes_most_, bytes);
  }
}

void PlacementDriver::MeasureStaging(absl::Time now) {
  const absl::Duration took = now - stage_began_;
  if (stage_bytes_most_ == 0 || took <= absl::ZeroDuration()) return;
  load_bytes_per_second_ =
      static_cast<double>(stage_bytes_most_) / absl::ToDoubleSeconds(took);
}

void PlacementDriver::DropOldRecords() {
  size_t finished = 0;
  for (const auto& [version, record] : records_) {
    if (IsFinal(record.state)) ++finished;
  }
  for (auto it = records_.begin();
       it != records_.end() && finished > options_.finished_kept;) {
    if (!IsFinal(it->second.state)) {
      ++it;
      continue;
    }
    forgotten_.insert(it->first);
    changed_.erase(it->first);
    it = records_.erase(it);
    --finished;
  }
  if (history_.size() > options_.history_kept) {
    history_.erase(
        history_.begin(),
        history_.end() - static_cast<std::ptrdiff_t>(options_.history_kept));
  }
}

void PlacementDriver::WakeAt(absl::Time time, DriverContext& context) {
  if (time > context.moment.now)
    next_deadline_ = std::min(next_deadline_, time);
}

}  // namespace trunkline::coordinator
