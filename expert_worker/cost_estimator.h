#pragma once

// What this worker's work costs, learned from the batches that it runs: a batch
// of E distinct experts and R routes takes about E * read + R * row. While the
// work is bound by reading weights, read is what counts; where arithmetic
// binds, row is. Least squares over the last few hundred batches, older ones
// fading. Pure.

#include <cstdint>

#include "absl/time/time.h"
#include "control/cluster_view.h"

namespace trunkline::expert {

class CostEstimator {
 public:
  void Add(uint64_t experts, uint64_t routes, absl::Duration took);

  // Unknown until enough batches have been seen. Batches that are all alike in
  // routes an expert can not tell the two costs apart: then reading gets all.
  control::ExpertCosts costs() const;

 private:
  // Faded sums; e: experts, r: routes, t: seconds.
  double ee_ = 0, er_ = 0, rr_ = 0, et_ = 0, rt_ = 0;
  uint64_t batches_ = 0;
};

}  // namespace trunkline::expert
