#include "dispatch/combine_plan.h"

#include "common/check.h"

namespace trunkline::dispatch {

void PlanCombine(const routing::RouteTable& table, CombinePlan* plan) {
  const auto rows = static_cast<size_t>(table.rows);
  const auto routes = static_cast<uint32_t>(table.size());
  plan->offsets.assign(rows + 1, 0);
  for (uint32_t r = 0; r < routes; ++r) {
    if (table.fate[r] != routing::RouteFate::kAccepted) continue;
    TL_CHECK_LT(table.token_id[r], rows) << "route " << r;
    ++plan->offsets[table.token_id[r] + 1];
  }
  for (size_t t = 0; t < rows; ++t) plan->offsets[t + 1] += plan->offsets[t];
  plan->order.resize(plan->offsets[rows]);
  // offsets[t] walks from the start of token t's part to its end, which is
  // where the part of t + 1 starts; it is moved back below.
  for (uint32_t r = 0; r < routes; ++r) {
    if (table.fate[r] != routing::RouteFate::kAccepted) continue;
    plan->order[plan->offsets[table.token_id[r]]++] = r;
  }
  for (size_t t = rows; t > 0; --t) plan->offsets[t] = plan->offsets[t - 1];
  plan->offsets[0] = 0;
  // A token has a handful of routes, so an insertion sort beats a general one.
  // It is stable: the same expert twice keeps the slot order.
  for (size_t t = 0; t < rows; ++t) {
    for (uint32_t i = plan->offsets[t] + 1; i < plan->offsets[t + 1]; ++i) {
      const uint32_t route = plan->order[i];
      uint32_t at = i;
      while (at > plan->offsets[t] &&
             table.expert_id[plan->order[at - 1]] > table.expert_id[route]) {
        plan->order[at] = plan->order[at - 1];
        --at;
      }
      plan->order[at] = route;
    }
  }
}

}  // namespace trunkline::dispatch
