#pragma once

// The smallest change that makes a placement whole again after workers are gone
// or have to go. Pure. It does not look at loads: balancing does that later,
// when nothing is missing.

#include <vector>

#include "absl/status/statusor.h"
#include "placement/placement_map.h"
#include "placement/worker_profile.h"

namespace trunkline::placement {

struct RepairResult {
  PlacementMap map;  // without a version; equal experts when nothing to do
  bool changed = false;
  int64_t copies_missing = 0;  // redundant copies that found no room
};

// Copies on workers outside `usable` go; every expert gets back as many copies
// as it had, as far as distinct workers with room exist, and at least one.
// `held`: maps whose shards the workers still keep, which use memory but cost
// no load. Prefers other failure domains, then the worker with the least of the
// layer for its speed, then the fewest bytes, then the lower id.
// RESOURCE_EXHAUSTED names the first expert that no usable worker has room for.
absl::StatusOr<RepairResult> RepairPlacement(
    const PlacementMap& map, const std::vector<MoeLayerShape>& layers,
    const std::vector<WorkerProfile>& usable,
    const std::vector<const PlacementMap*>& held);

}  // namespace trunkline::placement
