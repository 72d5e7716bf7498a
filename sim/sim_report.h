#pragma once

// Runs in words.

#include <cstdint>
#include <string>
#include <vector>

#include "sim/sim_run.h"

namespace trunkline::sim {

// The seed, what was checked, the digest of the trace, and the violation.
std::string DescribeRun(const RunResult& result);

// Over many seeds.
class SimTotals {
 public:
  void Add(const RunResult& result);
  uint64_t violations() const { return failed_seeds_.size(); }
  const std::vector<uint64_t>& failed_seeds() const { return failed_seeds_; }
  std::string Describe() const;

 private:
  uint64_t seeds_ = 0;
  RunResult sum_;
  absl::Duration settled_most_;
  uint64_t settled_most_seed_ = 0;
  std::vector<uint64_t> failed_seeds_;
};

}  // namespace trunkline::sim
