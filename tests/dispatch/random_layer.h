#pragma once

// Random routed layers and placements for the dispatch tests.

#include <algorithm>
#include <numeric>
#include <vector>

#include "common/random.h"
#include "placement/placement_map.h"
#include "routing/route_table.h"

namespace trunkline::dispatch {

struct RandomLayer {
  routing::RouteTable table;
  placement::LayerPlacement placement;
  std::vector<WorkerId> workers;  // ascending
};

// Distinct numbers below `limit`, in random order.
inline std::vector<uint32_t> Distinct(RandomStream& random, uint32_t limit,
                                      size_t count) {
  std::vector<uint32_t> all(limit);
  std::iota(all.begin(), all.end(), 0u);
  for (size_t i = 0; i < count; ++i) {
    std::swap(all[i], all[i + random.NextBelow(limit - i)]);
  }
  all.resize(count);
  return all;
}

inline RandomLayer MakeRandomLayer(RandomStream& random, uint32_t rows_max,
                                   uint32_t experts_max, uint32_t workers_max,
                                   bool with_drops) {
  RandomLayer layer;
  const auto workers = static_cast<uint32_t>(1 + random.NextBelow(workers_max));
  const auto experts = static_cast<uint32_t>(1 + random.NextBelow(experts_max));
  const size_t top_k = 1 + random.NextBelow(std::min(experts, 6u));
  const auto rows = static_cast<uint32_t>(random.NextBelow(rows_max + 1));
  for (uint32_t w = 0; w < workers; ++w) {
    layer.workers.push_back(WorkerId(3 + 2 * w));
  }
  layer.placement.layer =
      LayerIndex(static_cast<uint32_t>(random.NextBelow(9)));
  for (uint32_t e = 0; e < experts; ++e) {
    const size_t copies = 1 + random.NextBelow(std::min(workers, 3u));
    std::vector<uint32_t> on = Distinct(random, workers, copies);
    std::sort(on.begin(), on.end());
    std::vector<placement::Replica> replicas;
    for (uint32_t w : on) replicas.push_back({layer.workers[w], e});
    layer.placement.replicas.push_back(replicas);
  }
  layer.table.Clear(rows, experts, static_cast<int64_t>(top_k));
  for (uint32_t t = 0; t < rows; ++t) {
    const std::vector<uint32_t> chosen = Distinct(random, experts, top_k);
    for (size_t s = 0; s < top_k; ++s) {
      layer.table.Add(t, static_cast<uint16_t>(s), ExpertId(chosen[s]),
                      static_cast<float>(random.NextUnit()),
                      with_drops && random.NextBelow(4) == 0
                          ? routing::RouteFate::kDropped
                          : routing::RouteFate::kAccepted);
    }
  }
  return layer;
}

}  // namespace trunkline::dispatch
