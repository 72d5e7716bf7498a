#include "placement/load_prediction.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"

namespace trunkline::placement {

const LayerLoad* FindLoad(const std::vector<LayerLoad>& loads,
                          LayerIndex layer) {
  for (const LayerLoad& load : loads) {
    if (load.layer == layer) return &load;
  }
  return nullptr;
}

absl::Status ValidateLoads(const std::vector<LayerLoad>& loads,
                           const std::vector<MoeLayerShape>& layers) {
  for (const LayerLoad& load : loads) {
    const auto shape = std::find_if(
        layers.begin(), layers.end(),
        [&](const MoeLayerShape& s) { return s.layer == load.layer; });
    if (shape == layers.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("loads: layer ", load.layer.value, " is no moe layer"));
    }
    if (static_cast<int64_t>(load.load.size()) != shape->experts) {
      return absl::InvalidArgumentError(absl::StrCat(
          "loads: layer ", load.layer.value, " has ", load.load.size(),
          " loads for ", shape->experts, " experts"));
    }
    for (size_t e = 0; e < load.load.size(); ++e) {
      if (std::isfinite(load.load[e]) && load.load[e] >= 0) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("loads: layer ", load.layer.value, " expert ", e, " is ",
                       load.load[e]));
    }
  }
  return absl::OkStatus();
}

std::vector<double> WorkerTimes(const LayerPlacement& layer,
                                const std::vector<double>& load,
                                const std::vector<WorkerProfile>& workers) {
  std::vector<double> times(workers.size());
  for (size_t e = 0; e < layer.replicas.size(); ++e) {
    const double share =
        load[e] / static_cast<double>(layer.replicas[e].size());
    for (const Replica& replica : layer.replicas[e]) {
      const WorkerProfile* profile = FindProfile(workers, replica.worker);
      if (profile == nullptr) continue;
      times[static_cast<size_t>(profile - workers.data())] +=
          share / profile->speed;
    }
  }
  return times;
}

Prediction Predict(const PlacementMap& map, const std::vector<LayerLoad>& loads,
                   const std::vector<WorkerProfile>& workers) {
  double speed = 0;
  for (const WorkerProfile& profile : workers) speed += profile.speed;
  Prediction prediction;
  for (const LayerPlacement& layer : map.layers) {
    const LayerLoad* load = FindLoad(loads, layer.layer);
    if (load == nullptr || workers.empty()) continue;
    const std::vector<double> times = WorkerTimes(layer, load->load, workers);
    prediction.slowest += *std::max_element(times.begin(), times.end());
    prediction.ideal +=
        std::accumulate(load->load.begin(), load->load.end(), 0.0) / speed;
  }
  return prediction;
}

}  // namespace trunkline::placement
