#pragma once

// What the machine can do at most, measured in the same run as what is compared
// with it: the yardsticks of the benchmarks. Machines drift by a quarter within
// minutes, so a figure and its limit belong side by side.

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/thread_pool.h"

namespace trunkline::kernels {

// Bytes per second that all threads of the pool read from these ranges
// together, each byte once: the best of `repeats` passes.
double ReadBandwidth(ThreadPool& pool,
                     std::span<const std::span<const std::byte>> ranges,
                     int repeats);

// fp32 operations per second of all threads, two per fused multiply-add, in
// registers alone, on the active SIMD target: the best of `repeats` passes.
double FmaPeak(ThreadPool& pool, int repeats);

// The same for the dot product of bf16 pairs, two operations per product. 0
// where the machine does not have class bf16dot.
double Bf16DotPeak(ThreadPool& pool, int repeats);

// Bytes per second that one thread copies inside its first level cache, each
// byte counted once: the best of `repeats` passes.
double CacheCopy(int repeats);

// Seconds from a fork over all threads of the pool to its join, with nothing to
// do: the median of `repeats` calls back to back.
double ForkJoinSeconds(ThreadPool& pool, int repeats);

}  // namespace trunkline::kernels
