#pragma once

// Groups the routes of several dispatch frames by expert, so that one expert's
// weights are read once for all rows that wait for it, whichever trunk,
// micro-batch or frame they came from. Pure. The grouping never changes a bit:
// each row's result is a function of the row and the weights alone.

#include <cstdint>
#include <span>
#include <vector>

#include "common/ids.h"

namespace trunkline::expert {

struct RouteRef {
  uint32_t frame = 0;  // index into the batch's frames
  uint32_t route = 0;  // route of that frame
  friend bool operator==(const RouteRef&, const RouteRef&) = default;
};

struct ExpertGroup {
  ExpertId expert;
  uint32_t begin = 0;  // into order
  uint32_t count = 0;
  friend bool operator==(const ExpertGroup&, const ExpertGroup&) = default;
};

struct GroupedRoutes {
  std::vector<RouteRef> order;      // by expert, then frame, then route
  std::vector<ExpertGroup> groups;  // ascending by expert, none empty
};

// frames[i]: the expert of each route of frame i; every id is below `experts`.
GroupedRoutes GroupByExpert(std::span<const std::span<const uint32_t>> frames,
                            uint32_t experts);

}  // namespace trunkline::expert
