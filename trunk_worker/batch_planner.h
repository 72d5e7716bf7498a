#pragma once

// Which rows the next step computes: continuous batching. Pure.
//
// Decode rows come first, one per decoding sequence; when they do not all fit
// they take turns, starting at `rotation`. Prefill is first come, first served:
// each prompt takes at most one chunk a step, so a long prompt does not shut
// out the short one behind it. While any prompt waits, a quarter of the step
// (at least one row, at most a chunk) is kept for the oldest, so a full house
// of decoding sequences delays a prompt by a bounded number of steps.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace trunkline::trunk {

struct BatchLimits {
  int64_t rows_max = 256;      // of one step; at least 2
  int64_t prefill_chunk = 64;  // rows of one prompt in one step; at least 1
};

struct BatchRun {
  size_t sequence = 0;  // index into the input
  int64_t rows = 0;
  bool decode = false;
};

// prompt_left[i]: prompt rows that sequence i has not computed; 0: it decodes.
// Sequences stand in the order they were admitted. Decode runs stand before
// prefill runs. Reuses the memory of `runs`.
void PlanBatch(const BatchLimits& limits, std::span<const int64_t> prompt_left,
               uint64_t rotation, std::vector<BatchRun>* runs);

}  // namespace trunkline::trunk
