#pragma once

// Random layers, workers and valid placements for property tests.

#include <algorithm>
#include <vector>

#include "common/random.h"
#include "placement/placement_map.h"

namespace trunkline::placement {

inline std::vector<MoeLayerShape> RandomShapes(RandomStream& random) {
  std::vector<MoeLayerShape> shapes;
  uint32_t layer = 0;
  const size_t layers = 1 + random.NextBelow(4);
  for (size_t l = 0; l < layers; ++l) {
    layer += 1 + static_cast<uint32_t>(random.NextBelow(4));
    shapes.push_back(
        {.layer = LayerIndex(layer),
         .experts = 1 + static_cast<int64_t>(random.NextBelow(20)),
         .expert_bytes = 1 + static_cast<int64_t>(random.NextBelow(100))});
  }
  return shapes;
}

// 1 to 8 distinct workers, in no order.
inline std::vector<WorkerId> RandomWorkers(RandomStream& random) {
  std::vector<WorkerId> workers;
  uint32_t id = 0;
  const size_t count = 1 + random.NextBelow(8);
  for (size_t i = 0; i < count; ++i) {
    id += 1 + static_cast<uint32_t>(random.NextBelow(5));
    workers.push_back(WorkerId(id));
  }
  for (size_t i = count; i > 1; --i) {
    std::swap(workers[i - 1], workers[random.NextBelow(i)]);
  }
  return workers;
}

inline PlacementMap RandomPlacement(RandomStream& random,
                                    const std::vector<MoeLayerShape>& shapes,
                                    std::vector<WorkerId> workers) {
  PlacementMap map;
  map.version = PlacementVersion(1 + random.NextBelow(100));
  for (const MoeLayerShape& shape : shapes) {
    LayerPlacement layer;
    layer.layer = shape.layer;
    for (int64_t e = 0; e < shape.experts; ++e) {
      for (size_t i = workers.size(); i > 1; --i) {
        std::swap(workers[i - 1], workers[random.NextBelow(i)]);
      }
      const size_t copies =
          1 + random.NextBelow(std::min<size_t>(3, workers.size()));
      std::vector<Replica> replicas;
      for (size_t r = 0; r < copies; ++r) {
        replicas.push_back({.worker = workers[r], .slot = 0});
      }
      layer.replicas.push_back(std::move(replicas));
    }
    map.layers.push_back(std::move(layer));
  }
  AssignSlots(&map);
  return map;
}

}  // namespace trunkline::placement
