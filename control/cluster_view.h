#pragma once

// The coordinator's view of the cluster as plain values: generated proto types
// stop at control/.

#include <cstdint>
#include <string>
#include <vector>

#include "common/ids.h"
#include "placement/placement_map.h"
#include "placement/placement_version.h"

namespace trunkline::control {

enum class Role : uint8_t { kTrunk = 1, kExpert = 2 };
using PlacementState = placement::VersionState;
enum class ShardState : uint8_t { kLoading = 1, kReady, kFailed };

struct VersionReport {
  PlacementVersion version;
  ShardState state = ShardState::kLoading;
  std::string error;
  uint64_t bytes_loaded = 0, bytes_total = 0;
};

// What work costs an expert worker: a share of a layer takes about
// experts * read_seconds + rows * row_seconds. Both 0: not measured.
struct ExpertCosts {
  double read_seconds = 0, row_seconds = 0;

  bool known() const { return read_seconds > 0 || row_seconds > 0; }
};

struct WorkerView {
  WorkerId id;
  std::string name;
  Role role = Role::kExpert;
  uint64_t incarnation = 0;
  bool alive = false;
  std::string data_address, api_address, metrics_address, numerics_class,
      failure_domain;
  uint64_t memory_bytes = 0;
  double speed = 1.0;
  std::vector<VersionReport> versions;
  bool draining = false;  // gets no new experts and hands its own over
  bool drained = false;  // safe to stop: no version left names it, or the trunk
                         // refuses new requests and has none
  ExpertCosts costs;
};

struct PlacementView {
  placement::PlacementMap map;
  PlacementState state = PlacementState::kProposed;
};

struct ClusterView {
  uint64_t cluster_id = 0, epoch = 0, revision = 0;
  std::vector<WorkerView> workers;        // ascending by id
  std::vector<PlacementView> placements;  // not retired, ascending by version
  PlacementVersion active;                // invalid: none yet
  std::string waiting_for;  // why not every expert has a live owner that
                            // reported READY; empty: all have
  std::string model_digest;
  // What every worker computes in; empty: the first one decides.
  std::string numerics_class;
  std::vector<placement::MoeLayerShape> moe_layers;

  const WorkerView* FindWorker(WorkerId id) const;
  const PlacementView* FindPlacement(PlacementVersion version) const;
};

const char* Name(Role role);         // "trunk", "expert"
using placement::Name;               // of a PlacementState
const char* Name(ShardState state);  // "loading", "ready", "failed"

}  // namespace trunkline::control
