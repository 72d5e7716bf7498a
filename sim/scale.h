#pragma once

// Scale on paper: what a step, a link and a change cost with many expert
// workers. The plans, the frames' sizes, the repairs and their bytes come from
// the production code; what a machine and a wire need for them is declared
// here and can be replaced by what was measured.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace trunkline::sim {

// Per machine and wire. Defaults: a DGX Spark's memory, one 100 Gbit/s port.
struct ScaleCosts {
  double memory_bytes_per_second = 273e9;
  double link_bytes_per_second = 100e9 / 8 * 0.92;
  absl::Duration latency = absl::Microseconds(4);       // one way
  absl::Duration per_message = absl::Microseconds(1);   // of the trunk's core
  absl::Duration trunk_layer = absl::Microseconds(60);  // the mixer before it
  double flops_per_second = 30e12;
  double disk_bytes_per_second = 3e9;
};

struct ScaleShape {
  const char* name;
  int moe_layers, experts, top_k;
  int64_t width;           // of an exchanged row
  int64_t expert_bytes;    // as stored
  int64_t expert_weights;  // for the arithmetic
};
// Nano, Super and Ultra as published.
const std::vector<ScaleShape>& NemotronShapes();

struct ScaleRow {
  std::string shape;
  int workers = 0, replicas = 0, tokens = 0;
  int workers_used = 0;     // that a layer's frames go to, on average
  double experts_read = 0;  // by the slowest worker of a layer
  absl::Duration step;
  uint64_t trunk_link_bytes = 0;   // of a step, both ways
  uint64_t worker_link_bytes = 0;  // of a step, the busiest worker's
  uint64_t moved_bytes = 0;        // when one worker's experts are placed anew
  absl::Duration rebalance;
  uint64_t plan_operations = 0;  // of the trunk, in a step
};

absl::StatusOr<ScaleRow> ComputeScale(const ScaleShape& shape, int workers,
                                      int tokens, const ScaleCosts& costs);

// All shapes with 8, 64, 512 and 4096 workers.
absl::StatusOr<std::string> ScaleTable(int tokens, const ScaleCosts& costs);

}  // namespace trunkline::sim
