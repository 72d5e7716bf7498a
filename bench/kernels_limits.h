#pragma once

// What the machine can do at most, measured in the same run as the kernels: the
// yardsticks of kernels_bench.

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/thread_pool.h"

namespace trunkline::bench {

// Bytes per second that all threads of the pool read from these ranges
// together, each byte once: the best of `repeats` passes.
double ReadBandwidth(ThreadPool& pool,
                     std::span<const std::span<const std::byte>> ranges,
                     int repeats);

// fp32 operations per second of all threads, two per fused multiply-add, in
// registers alone, on the active SIMD target: the best of `repeats` passes.
double FmaPeak(ThreadPool& pool, int repeats);

}  // namespace trunkline::bench
