#pragma once

// What it takes to get from one placement to another: which worker loads which
// expert, from whom it could have it, and what may be dropped. Pure.

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "common/ids.h"
#include "placement/placement_map.h"

namespace trunkline::placement {

struct ExpertLoadMove {
  LayerIndex layer;
  ExpertId expert;
  WorkerId worker;                // loads the expert
  std::vector<WorkerId> sources;  // hold it under the old map, ascending
  uint64_t bytes = 0;
  friend bool operator==(const ExpertLoadMove&,
                         const ExpertLoadMove&) = default;
};

struct ExpertDrop {
  LayerIndex layer;
  ExpertId expert;
  WorkerId worker;
  friend bool operator==(const ExpertDrop&, const ExpertDrop&) = default;
};

struct PlacementDiff {
  std::vector<ExpertLoadMove> loads;  // ascending by (layer, expert, worker)
  std::vector<ExpertDrop> drops;      // ascending by (layer, expert, worker)
  uint64_t bytes = 0;                 // sum over loads
  std::map<WorkerId, uint64_t>
      bytes_by_worker;  // loaded; only workers that load
  bool empty() const { return loads.empty() && drops.empty(); }
};

// Both maps are valid for `layers`, or `from` has no layers at all (an empty
// cluster: everything is loaded). A copy that only changes its slot moves no
// bytes. INVALID_ARGUMENT when either map does not fit `layers`.
absl::StatusOr<PlacementDiff> DiffPlacements(
    const PlacementMap& from, const PlacementMap& to,
    const std::vector<MoeLayerShape>& layers);

}  // namespace trunkline::placement
