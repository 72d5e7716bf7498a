#pragma once

// What a placement would cost under given loads: the slowest worker of every
// layer sets the layer's time. Pure.

#include <vector>

#include "placement/placement_map.h"
#include "placement/worker_profile.h"

namespace trunkline::placement {

// Rows that each expert of a layer got in some period.
struct LayerLoad {
  LayerIndex layer;
  std::vector<double> load;  // [experts], finite, at least 0
};

const LayerLoad* FindLoad(const std::vector<LayerLoad>& loads,
                          LayerIndex layer);

// INVALID_ARGUMENT names layer and expert.
absl::Status ValidateLoads(const std::vector<LayerLoad>& loads,
                           const std::vector<MoeLayerShape>& layers);

// Rows divided by speed. Load is taken to split evenly over an expert's copies;
// the choice per step does better, but for all placements alike.
struct Prediction {
  double slowest = 0;  // sum over layers of the slowest worker's time
  double ideal = 0;    // the same if every layer were spread perfectly
  // 1: perfect. Also 1 without any load.
  double balancedness() const { return slowest > 0 ? ideal / slowest : 1; }
};

// [workers] of one layer. Copies on workers outside the list count for nobody.
std::vector<double> WorkerTimes(const LayerPlacement& layer,
                                const std::vector<double>& load,
                                const std::vector<WorkerProfile>& workers);

Prediction Predict(const PlacementMap& map, const std::vector<LayerLoad>& loads,
                   const std::vector<WorkerProfile>& workers);

}  // namespace trunkline::placement
