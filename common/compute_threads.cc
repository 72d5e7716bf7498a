#include "common/compute_threads.h"

#include <hwloc.h>

#include <algorithm>
#include <thread>

#include "common/check.h"

namespace trunkline {
namespace {

// The topology as this process sees it; empty when hwloc can not tell.
std::vector<int> CoresOfTopology() {
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) return {};
  std::vector<int> cpus;
  hwloc_cpuset_t allowed = hwloc_bitmap_alloc();
  if (hwloc_topology_load(topology) == 0 && allowed != nullptr) {
    // Not every system can say what a process is bound to: then it is not.
    if (hwloc_get_cpubind(topology, allowed, HWLOC_CPUBIND_PROCESS) != 0)
      hwloc_bitmap_fill(allowed);
    const int cores = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE);
    for (int i = 0; i < cores; ++i) {
      const hwloc_obj_t core = hwloc_get_obj_by_type(topology, HWLOC_OBJ_CORE,
                                                     static_cast<unsigned>(i));
      if (!hwloc_bitmap_intersects(core->cpuset, allowed)) continue;
      int cpu = hwloc_bitmap_first(core->cpuset);
      while (!hwloc_bitmap_isset(allowed, static_cast<unsigned>(cpu)))
        cpu = hwloc_bitmap_next(core->cpuset, cpu);
      cpus.push_back(cpu);
    }
  }
  hwloc_bitmap_free(allowed);
  hwloc_topology_destroy(topology);
  return cpus;
}

}  // namespace

std::vector<int> UsableCores() {
  std::vector<int> cpus = CoresOfTopology();
  if (!cpus.empty()) return cpus;
  const unsigned count = std::max(1u, std::thread::hardware_concurrency());
  for (unsigned i = 0; i < count; ++i) cpus.push_back(static_cast<int>(i));
  return cpus;
}

ThreadPool::Options ComputeThreads(int threads, const std::vector<int>& cores) {
  ThreadPool::Options options;
  options.cores = cores;
  options.threads = threads;
  if (threads == 0) {
    options.threads =
        static_cast<int>(cores.empty() ? UsableCores().size() : cores.size());
  }
  return options;
}

std::vector<std::vector<int>> ShareOut(const std::vector<int>& cpus,
                                       int parts) {
  TL_CHECK(!cpus.empty() && parts >= 1);
  const size_t count = cpus.size();
  const auto pieces = static_cast<size_t>(parts);
  std::vector<std::vector<int>> shares(pieces);
  for (size_t i = 0; i < pieces; ++i) {
    const size_t begin = i * count / pieces;
    const size_t end = std::max(begin + 1, (i + 1) * count / pieces);
    shares[i].assign(cpus.begin() + static_cast<int64_t>(begin),
                     cpus.begin() + static_cast<int64_t>(end));
  }
  return shares;
}

}  // namespace trunkline
