// Planning a rebalance: how long an operator waits for it, and how good it is.

#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdlib>
#include <vector>

#include "common/random.h"
#include "placement/balance.h"

namespace trunkline::placement {
namespace {

// A few experts take most of the rows, as routers do.
std::vector<double> SkewedLoad(RandomStream& random, int64_t experts) {
  const double exponent = 0.5 + random.NextUnit();
  std::vector<double> load(static_cast<size_t>(experts));
  for (size_t rank = 0; rank < load.size(); ++rank) {
    load[rank] = std::floor(10000.0 / std::pow(rank + 1.0, exponent) *
                            (0.5 + random.NextUnit()));
  }
  for (size_t i = load.size(); i > 1; --i) {
    std::swap(load[i - 1], load[random.NextBelow(i)]);
  }
  return load;
}

BalanceRequest MakeRequest(int64_t layers, int64_t experts, int64_t workers,
                           int64_t slots) {
  RandomStream random(11);
  BalanceRequest request;
  for (int64_t l = 0; l < layers; ++l) {
    const LayerIndex layer(static_cast<uint32_t>(2 * l + 1));
    request.layers.push_back(
        {.layer = layer, .experts = experts, .expert_bytes = 1 << 20});
    request.loads.push_back(
        {.layer = layer, .load = SkewedLoad(random, experts)});
  }
  for (int64_t w = 0; w < workers; ++w) {
    request.workers.push_back({.worker = WorkerId(static_cast<uint32_t>(w)),
                               .memory_bytes = 0,
                               .speed = 1,
                               .failure_domain = std::to_string(w),
                               .numerics_class = "portable"});
  }
  request.slots_per_worker = slots;
  request.min_gain = 0;
  return request;
}

// From the first placement to a balanced one. Arguments: layers, experts of
// each, workers, slots of a layer on a worker (0: as many copies as now).
void BM_PlanIncremental(benchmark::State& state) {
  BalanceRequest request = MakeRequest(state.range(0), state.range(1),
                                       state.range(2), state.range(3));
  request.policy = BalancePolicy::kStatic;
  const PlacementMap first = PlanBalance(request)->map;
  request.policy = BalancePolicy::kIncremental;
  request.current = &first;
  request.held = {&first};
  absl::StatusOr<BalancePlan> plan;
  for (auto _ : state) {
    plan = PlanBalance(request);
    if (!plan.ok()) std::abort();
  }
  state.counters["balancedness"] = plan->after.balancedness();
  state.counters["moved_MiB"] = static_cast<double>(plan->diff.bytes >> 20);
}
BENCHMARK(BM_PlanIncremental)
    ->Args({40, 512, 64, 0})
    ->Args({40, 512, 64, 9})
    ->Args({40, 512, 64, 16})
    ->Args({48, 128, 8, 18})
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace trunkline::placement

BENCHMARK_MAIN();
