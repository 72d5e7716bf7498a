#pragma once

// Where the experts should be, given what they are asked for. Pure: snapshot
// in, plan out. Policies:
// - static:      the striped first placement, whatever the loads;
// - eplb:        the published algorithm (eplb.h), whatever is placed now; of
//                two copies on one worker one is left out;
// - incremental: ours. From the current placement, the fewest bytes that bring
//                the predicted slowest worker down, within memory, speed,
//                failure domains, numerics classes and a limit on moved bytes.

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "placement/load_prediction.h"
#include "placement/placement_diff.h"
#include "placement/placement_map.h"
#include "placement/worker_profile.h"

namespace trunkline::placement {

enum class BalancePolicy : uint8_t { kStatic = 1, kEplb, kIncremental };

const char* Name(BalancePolicy policy);
// "static", "eplb", "incremental"; INVALID_ARGUMENT otherwise.
absl::StatusOr<BalancePolicy> ParseBalancePolicy(absl::string_view name);

struct BalanceRequest {
  BalancePolicy policy = BalancePolicy::kIncremental;
  std::vector<MoeLayerShape> layers;
  std::vector<LayerLoad> loads;        // a layer without an entry has no load
  std::vector<WorkerProfile> workers;  // those that may hold experts
  const PlacementMap* current = nullptr;  // null: nothing is placed yet
  // Maps whose shards the workers still keep (the current one among them).
  std::vector<const PlacementMap*> held;
  // Copies that every expert has at least; static: exactly.
  int64_t replicas = 1;
  // Copies of one layer that a worker has at most. 0: only memory limits it,
  // and a layer has as many copies in all as it has now.
  int64_t slots_per_worker = 0;
  uint64_t max_moved_bytes = std::numeric_limits<uint64_t>::max();
  // A plan whose predicted slowest worker wins less than this share of its time
  // is not worth the move.
  double min_gain = 0.05;
  int64_t num_groups = 1, num_nodes = 1;  // eplb
};

struct BalancePlan {
  PlacementMap map;         // without a version; the current one if not
                            // worthwhile
  bool worthwhile = false;  // differs from the current map and gains enough,
                            // or the current map can not stay
  std::string reason;       // why, for people
  Prediction before, after;
  PlacementDiff diff;  // from the current map to `map`
  double gain() const {
    return before.slowest > 0 ? 1 - after.slowest / before.slowest : 0;
  }
};

// INVALID_ARGUMENT for a request that makes no sense, FAILED_PRECONDITION or
// RESOURCE_EXHAUSTED when the workers can not hold a plan of this policy.
absl::StatusOr<BalancePlan> PlanBalance(const BalanceRequest& request);

}  // namespace trunkline::placement
