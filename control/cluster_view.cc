#include "control/cluster_view.h"

namespace trunkline::control {

const WorkerView* ClusterView::FindWorker(WorkerId id) const {
  for (const WorkerView& worker : workers) {
    if (worker.id == id) return &worker;
  }
  return nullptr;
}

const PlacementView* ClusterView::FindPlacement(
    PlacementVersion version) const {
  for (const PlacementView& placement : placements) {
    if (placement.map.version == version) return &placement;
  }
  return nullptr;
}

const char* Name(Role role) {
  switch (role) {
    case Role::kTrunk:
      return "trunk";
    case Role::kExpert:
      return "expert";
  }
  return "unknown role";
}

const char* Name(ShardState state) {
  switch (state) {
    case ShardState::kLoading:
      return "loading";
    case ShardState::kReady:
      return "ready";
    case ShardState::kFailed:
      return "failed";
  }
  return "unknown state";
}

}  // namespace trunkline::control
