#include "dispatch/worker_costs.h"

#include <algorithm>
#include <cmath>

namespace trunkline::dispatch {
namespace {

// A second. Millions of rows at this still fit 64 bits.
constexpr double kPicosMost = 1e12;

uint64_t Picos(double seconds) {
  const double picos = seconds * 1e12;
  if (!(picos > 0)) return 0;
  return static_cast<uint64_t>(std::llround(std::min(picos, kPicosMost)));
}

bool Known(const MeasuredCost& cost) {
  return cost.read_seconds > 0 || cost.row_seconds > 0;
}

}  // namespace

std::vector<WorkerCost> CostsFrom(std::span<const MeasuredCost> measured) {
  MeasuredCost mean;
  double known = 0;
  for (const MeasuredCost& cost : measured) {
    if (!Known(cost)) continue;
    known += 1;
    mean.read_seconds += cost.read_seconds;
    mean.row_seconds += cost.row_seconds;
  }
  std::vector<WorkerCost> costs;
  for (const MeasuredCost& cost : measured) {
    if (known == 0) {
      costs.push_back({.worker = cost.worker});
      continue;
    }
    const double share = Known(cost) ? 1 : 1 / known;
    const MeasuredCost& from = Known(cost) ? cost : mean;
    // At least one: work that costs nothing would go anywhere.
    costs.push_back(
        {.worker = cost.worker,
         .read = std::max<uint64_t>(1, Picos(from.read_seconds * share)),
         .row = Picos(from.row_seconds * share)});
  }
  std::sort(costs.begin(), costs.end(),
            [](const WorkerCost& a, const WorkerCost& b) {
              return a.worker < b.worker;
            });
  return costs;
}

}  // namespace trunkline::dispatch
