#include "expert_worker/token_batcher.h"

#include "common/check.h"

namespace trunkline::expert {

GroupedRoutes GroupByExpert(std::span<const std::span<const uint32_t>> frames,
                            uint32_t experts) {
  std::vector<uint32_t> next(experts + 1, 0);
  for (const auto& frame : frames) {
    for (const uint32_t expert : frame) {
      TL_CHECK_LT(expert, experts);
      ++next[expert + 1];
    }
  }
  GroupedRoutes grouped;
  for (uint32_t e = 0; e < experts; ++e) {
    const uint32_t count = next[e + 1];
    if (count > 0) grouped.groups.push_back({ExpertId(e), next[e], count});
    next[e + 1] += next[e];
  }
  grouped.order.resize(next[experts]);
  for (uint32_t f = 0; f < frames.size(); ++f) {
    for (uint32_t r = 0; r < frames[f].size(); ++r)
      grouped.order[next[frames[f][r]]++] = {f, r};
  }
  return grouped;
}

}  // namespace trunkline::expert
