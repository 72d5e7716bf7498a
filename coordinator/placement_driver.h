#pragma once

// Carries placement versions through their life: proposes the first one and
// repairs, stages, activates, drains, retires and abandons. Pure. At most one
// change is under way at a time, and at most one version is active.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/coordinator_action.h"
#include "coordinator/coordinator_event.h"
#include "coordinator/membership.h"
#include "coordinator/placement_store.h"

namespace trunkline::coordinator {

struct DriverOptions {
  int64_t expert_workers = 1;  // joined before the first placement is made
  int64_t replicas = 1;        // of the first placement
  // A change that is not ready by then is abandoned.
  absl::Duration stage_timeout = absl::Minutes(10);
  // A trunk whose lease ran out may only be cut off from us, not from the
  // expert workers: versions it may use are kept for so long.
  absl::Duration trunk_grace = absl::Seconds(30);
  // How long a lost worker may take to come back before its experts are placed
  // elsewhere: when nobody else has them, and when only redundancy is lost.
  absl::Duration repair_delay = absl::Seconds(5);
  absl::Duration redundancy_delay = absl::Seconds(60);
  // After a change of ours was abandoned.
  absl::Duration retry_delay = absl::Seconds(5);
  size_t finished_kept = 32;  // retired and abandoned versions, for rollback
  size_t history_kept = 512;
};

// What the driver sees and may write of the rest of the coordinator.
struct DriverContext {
  ClusterRecord& cluster;
  bool& cluster_changed;
  const Membership& membership;
  Moment moment;
  uint64_t next_revision;  // of the view that will show what happens now
  std::vector<std::string>& notes;
  Tally& tally;
};

class PlacementDriver {
 public:
  // first_revision: of the first view that shows these contents.
  PlacementDriver(DriverOptions options, const StoreContents& contents,
                  uint64_t first_revision);

  // Starts a change to a map that fits model and workers. ALREADY_EXISTS when
  // the active version has that map, FAILED_PRECONDITION when another change is
  // under way or the map asks too much of a worker.
  absl::StatusOr<PlacementVersion> Propose(placement::PlacementMap map,
                                           const std::string& origin,
                                           DriverContext& context);
  // Gives up the change that is under way.
  absl::Status Abandon(PlacementVersion version, const std::string& reason,
                       DriverContext& context);
  // Does everything that has become possible.
  void Advance(DriverContext& context);

  const PlacementRecord* Active() const;
  const PlacementRecord* OpenChange() const;
  const PlacementRecord* Find(PlacementVersion version) const;
  // The map to go back to: the one that was active before the active one.
  const PlacementRecord* Previous() const;
  const std::map<PlacementVersion, PlacementRecord>& records() const {
    return records_;
  }
  const std::vector<HistoryRecord>& history() const { return history_; }
  // Every version that is not retired or abandoned.
  std::set<PlacementVersion> LiveVersions() const;
  // Workers that a version names which is not retired or abandoned.
  std::set<WorkerId> NamedWorkers() const;
  // Maps whose shards workers keep.
  std::vector<const placement::PlacementMap*> HeldMaps() const;
  // Why the last change of ours came to nothing, while there is none active.
  const std::string& last_failure() const { return last_failure_; }
  const DriverOptions& options() const { return options_; }
  // Why a repair or a drain can not go on; empty when nothing is in the way.
  const std::string& blocked() const { return blocked_; }
  // How fast the slowest worker loaded the last change; 0: not measured.
  double load_bytes_per_second() const { return load_bytes_per_second_; }
  absl::Time next_deadline() const { return next_deadline_; }

  // What changed since the last call, for the store and the view.
  void TakeChanges(StoreChange* change);

 private:
  void Move(PlacementRecord* record, placement::VersionState to,
            const std::string& detail, DriverContext& context);
  void AbandonRecord(PlacementRecord* record, const std::string& reason,
                     DriverContext& context);
  bool AdvanceOpen(DriverContext& context);
  bool AdvanceStaging(PlacementRecord* record, DriverContext& context);
  void Activate(PlacementRecord* record, DriverContext& context);
  bool RetireDrained(DriverContext& context);
  bool TrunkMayUse(const Member& trunk, const PlacementRecord& record,
                   DriverContext& context);
  bool ProposeFirst(DriverContext& context);
  bool ProposeRepair(DriverContext& context);
  bool FailedToLoad(const Member& member) const;
  bool RepairNeeded(DriverContext& context);
  bool ExpertsAreLost(DriverContext& context);
  bool ProposeOwn(placement::PlacementMap map, const std::string& origin,
                  DriverContext& context);
  PlacementRecord* MutableActive();
  PlacementRecord* MutableOpen();
  void BeginStaging(const PlacementRecord& record, DriverContext& context);
  void MeasureStaging(absl::Time now);
  void DropOldRecords();
  void WakeAt(absl::Time time, DriverContext& context);

  const DriverOptions options_;
  const uint64_t first_revision_;
  std::map<PlacementVersion, PlacementRecord> records_;
  std::vector<HistoryRecord> history_;
  std::set<PlacementVersion> changed_, forgotten_;
  std::vector<HistoryRecord> new_history_;

  // Of the change that is under way; not stored: a restart begins anew.
  std::map<WorkerId, uint64_t> staging_incarnations_;
  absl::Time stage_deadline_ = absl::InfiniteFuture();
  absl::Time stage_began_;
  uint64_t stage_bytes_most_ = 0;  // of the worker that loads most
  double load_bytes_per_second_ = 0;
  // View revision of this epoch that first showed a version as draining;
  // versions that drained before are absent (first_revision_ shows them).
  std::map<PlacementVersion, uint64_t> drained_since_;
  absl::Time retry_at_ = absl::InfinitePast();
  std::string last_failure_;
  std::string blocked_;
  absl::Time next_deadline_ = absl::InfiniteFuture();
};

}  // namespace trunkline::coordinator
