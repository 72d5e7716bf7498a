#pragma once

// The published EPLB algorithm: three greedy stages over one layer's expert
// loads (groups to nodes, copies inside each node, copies to workers). Kept
// exactly as published, with the tie rule "equal loads: lower index first", as
// a yardstick and for those who want it. It knows no memory, no speed, no
// failure domain and not what is placed now, and it may put two copies of an
// expert on one worker. Pure.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace trunkline::placement {

struct EplbShape {
  int64_t num_replicas = 0;  // slots over all workers
  int64_t num_groups = 1;    // expert groups of the router
  int64_t num_nodes = 1;
  int64_t num_workers = 1;
};

struct EplbResult {
  // [num_replicas]: the expert in each slot; worker w has the slots from
  // w * (num_replicas / num_workers) on.
  std::vector<int64_t> expert_of_slot;
  std::vector<int64_t> copies;  // [experts]
};

// Hierarchical when the groups divide evenly over the nodes, global otherwise.
// load: [experts], each at least 0 and finite. INVALID_ARGUMENT names what does
// not divide.
absl::StatusOr<EplbResult> EplbPlace(const std::vector<double>& load,
                                     const EplbShape& shape);

}  // namespace trunkline::placement
