#pragma once

// The incremental policy's search over all layers. Pure; used by balance.cc.

#include "placement/balance.h"
#include "placement/placement_map.h"

namespace trunkline::placement {

// `start` is valid, on request.workers only, and within their memory. The
// result is at least as good, and moves at most request.max_moved_bytes more
// than `start` does.
PlacementMap ImproveIncrementally(const BalanceRequest& request,
                                  const PlacementMap& start);

}  // namespace trunkline::placement
