#pragma once

// Replays of many layer-steps taken together. Pure.

#include <cstdint>

#include "placement/placement_map.h"
#include "routing/replay.h"

namespace trunkline::cli {

// Counts, masses and bytes add up; what is a peak (live bytes, distinct experts
// of a worker) stays the largest of them.
struct ReplayTotals {
  int64_t layer_steps = 0;
  // Of `record` only policy, admission, representation and tied_rows.
  routing::ReplayResult sum;
};
void AddReplay(const routing::ReplayResult& one, ReplayTotals* totals);
// Sweeps over the same values; the first one sets them.
void AddSweep(const routing::Sweep& one, routing::Sweep* sum);

// Owners for Replay: under a placement of the layer, each expert that has
// routes runs on the replica that dispatch would choose.
absl::StatusOr<std::vector<WorkerId>> OwnersUnder(
    const routing::RouteTable& table, const placement::LayerPlacement& placed);

}  // namespace trunkline::cli
