#pragma once

// Planning a placement change from what a coordinator knows. Taking the
// snapshot is quick and needs the core; planning is slow and needs nothing but
// the snapshot. Pure.

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/coordinator.h"
#include "placement/balance.h"

namespace trunkline::coordinator {

struct RebalanceSnapshot {
  std::vector<placement::MoeLayerShape> layers;
  std::vector<placement::LayerLoad> loads;
  std::vector<placement::WorkerProfile> workers;
  placement::PlacementMap current;
  std::vector<placement::PlacementMap> held;
  std::map<WorkerId, std::string> names;
  int64_t replicas = 1;
  // Of the slowest worker while the last change was loaded; 0: not measured.
  double load_bytes_per_second = 0;
};

// FAILED_PRECONDITION when nothing is active or a change is under way.
absl::StatusOr<RebalanceSnapshot> TakeSnapshot(const Coordinator& core);

struct RebalanceOptions {
  placement::BalancePolicy policy = placement::BalancePolicy::kIncremental;
  int64_t replicas = 0;          // 0: as in the first placement
  int64_t slots_per_worker = 0;  // see BalanceRequest
  uint64_t max_moved_bytes = 0;  // 0: not limited
  double min_gain = 0.05;
  int64_t num_groups = 1, num_nodes = 1;
};

absl::StatusOr<placement::BalancePlan> PlanRebalance(
    const RebalanceSnapshot& snapshot, const RebalanceOptions& options);

// A plan for a map that somebody brought: what it would move and win.
// INVALID_ARGUMENT or FAILED_PRECONDITION when it does not fit.
absl::StatusOr<placement::BalancePlan> PlanGivenMap(
    const RebalanceSnapshot& snapshot, const placement::PlacementMap& map);

// How long loading takes at the measured rate; zero: not known.
absl::Duration ExpectedLoadTime(const RebalanceSnapshot& snapshot,
                                const placement::PlacementDiff& diff);

}  // namespace trunkline::coordinator
