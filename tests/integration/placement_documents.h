#pragma once

// Placement documents for tests that change a cluster's placement at random.

#include <string>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/random.h"
#include "placement/placement_json.h"

namespace trunkline::testing {

// A document over the same layers and workers as `document`, each expert on
// `replicas` workers drawn at random.
inline std::string ShufflePlacement(const std::string& document,
                                    size_t replicas, RandomStream& random) {
  absl::StatusOr<placement::PlacementDocument> parsed =
      placement::PlacementFromJson(document);
  TL_CHECK(parsed.ok()) << parsed.status();
  std::vector<WorkerId> workers;
  for (const auto& [id, name] : parsed->worker_names) workers.push_back(id);
  TL_CHECK(replicas <= workers.size());
  for (placement::LayerPlacement& layer : parsed->map.layers) {
    for (std::vector<placement::Replica>& owners : layer.replicas) {
      owners.clear();
      for (size_t r = 0; r < replicas; ++r) {
        std::swap(workers[r],
                  workers[r + random.NextBelow(workers.size() - r)]);
        owners.push_back({.worker = workers[r], .slot = 0});
      }
    }
  }
  placement::AssignSlots(&parsed->map);
  return placement::PlacementToJson(*parsed);
}

}  // namespace trunkline::testing
