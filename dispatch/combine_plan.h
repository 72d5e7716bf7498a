#pragma once

// The order in which a layer's contributions are added: per token, ascending
// expert id (contract c in architecture.md). Pure.

#include <cstdint>
#include <vector>

#include "routing/route_table.h"

namespace trunkline::dispatch {

struct CombinePlan {
  std::vector<uint32_t> offsets;  // [rows + 1]; row r takes order[offsets[r]]
                                  // .. order[offsets[r+1]-1]
  std::vector<uint32_t> order;    // route rows of accepted routes, ascending
                                  // expert id inside a token
};

// Reuses the plan's memory.
void PlanCombine(const routing::RouteTable& table, CombinePlan* plan);

}  // namespace trunkline::dispatch
