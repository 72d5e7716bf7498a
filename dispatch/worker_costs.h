#pragma once

// What a share of a layer costs the worker that gets it: so much for each
// distinct expert (its weights are read once) and so much for each row through
// it. Integers in one unit, so that equal inputs give equal choices everywhere.

#include <cstdint>
#include <span>
#include <vector>

#include "common/ids.h"

namespace trunkline::dispatch {

struct WorkerCost {
  WorkerId worker;
  uint64_t read = 1;  // a distinct expert
  uint64_t row = 0;   // a route
  friend bool operator==(const WorkerCost&, const WorkerCost&) = default;
};

// One measured worker, in seconds; both 0: not measured.
struct MeasuredCost {
  WorkerId worker;
  double read_seconds = 0, row_seconds = 0;
};

// Ascending by worker, in picoseconds. Workers that are not measured cost what
// the measured ones cost on average; when none is, the costs are those of
// weight reads alone, all workers alike.
std::vector<WorkerCost> CostsFrom(std::span<const MeasuredCost> measured);

}  // namespace trunkline::dispatch
