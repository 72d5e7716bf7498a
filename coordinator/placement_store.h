#pragma once

// What a coordinator must not forget, and the door to wherever it is kept. The
// records are plain values; the core says which of them changed, the edge
// commits the change before anybody hears of it. Implementations: store_sqlite,
// store_etcd.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "control/cluster_view.h"
#include "control/coordinator_client.h"
#include "placement/placement_map.h"
#include "placement/placement_version.h"

namespace trunkline::coordinator {

// What every worker of the cluster has in common; set by the first to register.
struct ClusterModel {
  std::string model_digest, numerics_class, self_check_digest;
  std::vector<placement::MoeLayerShape> moe_layers;
  std::string registered_by;  // for error messages
  // The first expert worker's sizes count; a trunk's are a first guess.
  bool sizes_from_expert = false;
};

struct ClusterRecord {
  uint64_t cluster_id = 0;  // random at birth
  uint64_t epoch = 0;       // grows with each start
  uint32_t next_worker = 0;
  uint64_t next_version = 1;
  uint64_t next_history = 1;
  std::optional<ClusterModel> model;
  bool pinned = false;  // nothing changes the placement by itself
  std::string pin_reason;
};

struct WorkerRecord {
  WorkerId id;
  // moe_layers empty: see ClusterModel; replaces: 0.
  control::Registration registration;
  uint64_t incarnation = 0;
  bool alive = false;
  bool left = false;      // said goodbye, so nothing is in flight
  bool cordoned = false;  // an operator drains it
  bool leaving = false;   // it asked to be drained; over with the process
  std::vector<control::VersionReport> versions;  // ascending by version
  // Processes that had the name before, the latest last, a few of them: a
  // request of theirs that is still on its way takes nothing back.
  std::vector<uint64_t> replaced;
};

struct PlacementRecord {
  placement::PlacementMap map;
  placement::VersionState state = placement::VersionState::kProposed;
  std::string origin;  // "initial", "apply", "rollback to 3", "repair", ...
  std::string reason;  // why it was abandoned
  PlacementVersion replaces;  // active when this was proposed; invalid: none
};

struct HistoryRecord {
  uint64_t sequence = 0;  // ascending, dense from 1
  absl::Time at;          // wall clock, for people
  PlacementVersion version;
  placement::VersionState state = placement::VersionState::kProposed;
  std::string detail;
};

struct StoreContents {
  ClusterRecord cluster;
  std::vector<WorkerRecord> workers;        // ascending by id
  std::vector<PlacementRecord> placements;  // ascending by version
  std::vector<HistoryRecord> history;       // ascending by sequence
};

// Whole records to write over the old ones, in one transaction.
struct StoreChange {
  std::optional<ClusterRecord> cluster;
  std::vector<WorkerRecord> workers;
  std::vector<PlacementRecord> placements;
  std::vector<HistoryRecord> history;
  std::vector<WorkerId> forgotten_workers;
  std::vector<PlacementVersion> forgotten_placements;
  uint64_t history_from = 0;  // entries below are dropped

  bool empty() const {
    return !cluster && workers.empty() && placements.empty() &&
           history.empty() && forgotten_workers.empty() &&
           forgotten_placements.empty();
  }
};

// Thread-compatible: one thread at a time. All calls may block on disk or
// network.
class PlacementStore {
 public:
  virtual ~PlacementStore() = default;
  // What the last Commit left. The epoch is the one that this opening began.
  virtual absl::StatusOr<StoreContents> Load() = 0;
  // All of the change or nothing, durable when it returns OK. An error may
  // leave it unknown whether the change happened: Load tells.
  // FAILED_PRECONDITION: another coordinator has begun a later epoch.
  virtual absl::Status Commit(const StoreChange& change) = 0;
  // OK: at some moment of the call this opening's epoch was the newest, and
  // what its last Load and Commit left was all that there is. A barrier in
  // front of reads from memory; changes nothing. FAILED_PRECONDITION: another
  // coordinator leads (control::LeaderIn, where the store knows who), or nobody
  // does. ABORTED: something else was written; Load tells what.
  virtual absl::Status Confirm() = 0;
};

}  // namespace trunkline::coordinator
