#include "placement/placement_diff.h"

#include <algorithm>

#include "common/status_macros.h"

namespace trunkline::placement {
namespace {

bool Holds(const std::vector<Replica>& replicas, WorkerId worker) {
  return std::any_of(
      replicas.begin(), replicas.end(),
      [worker](const Replica& replica) { return replica.worker == worker; });
}

void DiffExpert(const MoeLayerShape& shape, ExpertId expert,
                const std::vector<Replica>& from,
                const std::vector<Replica>& to, PlacementDiff* diff) {
  for (const Replica& replica : to) {
    if (Holds(from, replica.worker)) continue;
    ExpertLoadMove load;
    load.layer = shape.layer;
    load.expert = expert;
    load.worker = replica.worker;
    for (const Replica& source : from) load.sources.push_back(source.worker);
    load.bytes = static_cast<uint64_t>(shape.expert_bytes);
    diff->bytes += load.bytes;
    diff->bytes_by_worker[load.worker] += load.bytes;
    diff->loads.push_back(std::move(load));
  }
  for (const Replica& replica : from) {
    if (Holds(to, replica.worker)) continue;
    diff->drops.push_back(
        {.layer = shape.layer, .expert = expert, .worker = replica.worker});
  }
}

}  // namespace

absl::StatusOr<PlacementDiff> DiffPlacements(
    const PlacementMap& from, const PlacementMap& to,
    const std::vector<MoeLayerShape>& layers) {
  if (!from.layers.empty()) TL_RETURN_IF_ERROR(ValidatePlacement(from, layers));
  TL_RETURN_IF_ERROR(ValidatePlacement(to, layers));
  static const std::vector<Replica> kNobody;
  PlacementDiff diff;
  for (size_t l = 0; l < layers.size(); ++l) {
    for (size_t e = 0; e < to.layers[l].replicas.size(); ++e) {
      DiffExpert(layers[l], ExpertId(static_cast<uint32_t>(e)),
                 from.layers.empty() ? kNobody : from.layers[l].replicas[e],
                 to.layers[l].replicas[e], &diff);
    }
  }
  return diff;
}

}  // namespace trunkline::placement
