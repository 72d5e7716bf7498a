#pragma once

// How many threads a process computes with, and on which cpus.

#include <vector>

#include "common/thread_pool.h"

namespace trunkline {

// Logical cpus that this process may use (its affinity and its container's
// set), one of each physical core, in the machine's order: neighbours share
// caches and memory. Two threads of one core share its arithmetic units, so
// that a second one adds nothing to what a pool does. Never empty.
std::vector<int> UsableCores();

// For flags: `threads` 0 takes one per cpu of `cores`, or one per usable core
// when there is no such list. Pinned only to cpus that were named: several
// processes of one host that each took the first cpus would fight for them.
ThreadPool::Options ComputeThreads(int threads, const std::vector<int>& cores);

// `cpus` cut into `parts` pieces of about equal size for processes that compute
// at the same time; with more parts than cpus, neighbours share one.
std::vector<std::vector<int>> ShareOut(const std::vector<int>& cpus, int parts);

}  // namespace trunkline
