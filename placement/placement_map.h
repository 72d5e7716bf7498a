#pragma once

// Which worker holds which expert, for one placement version. Pure values with
// a stable order.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/ids.h"

namespace trunkline::placement {

struct Replica {
  WorkerId worker;
  uint32_t slot = 0;  // index in that worker's store for this version, dense
                      // from 0 over all its layers
  friend auto operator<=>(const Replica&, const Replica&) = default;
};

struct LayerPlacement {
  LayerIndex layer;  // a moe layer
  std::vector<std::vector<Replica>>
      replicas;  // [expert] -> at least one, ascending by worker
};

struct PlacementMap {
  PlacementVersion version;
  std::vector<LayerPlacement> layers;  // ascending by layer

  const LayerPlacement* FindLayer(LayerIndex layer) const;
  std::vector<WorkerId> Workers() const;  // ascending, distinct
};

// The experts that a placement spreads: one entry per moe layer.
struct MoeLayerShape {
  LayerIndex layer;
  int64_t experts = 0;
  int64_t expert_bytes = 0;  // weights of one expert as stored
};

// Sorts each expert's replicas by worker and numbers every worker's slots dense
// from 0 in (layer, expert) order: the one numbering that all our own maps use.
void AssignSlots(PlacementMap* map);

// Layers ascend, each with at least one expert. INVALID_ARGUMENT names the
// layer.
absl::Status ValidateShapes(const std::vector<MoeLayerShape>& layers);

// Every expert of every layer has an owner, no two copies on one worker, layers
// and workers ascending, slots dense. INVALID_ARGUMENT names layer, expert and
// worker.
absl::Status ValidatePlacement(const PlacementMap& map,
                               const std::vector<MoeLayerShape>& layers);

// Deterministic start: replica r of the i-th expert of a layer goes to the
// worker at (i * W / E + r) mod W of the ascending worker list (contiguous
// shards). replicas <= workers.
absl::StatusOr<PlacementMap> InitialPlacement(
    PlacementVersion version, const std::vector<MoeLayerShape>& layers,
    std::vector<WorkerId> workers, int64_t replicas);

}  // namespace trunkline::placement
