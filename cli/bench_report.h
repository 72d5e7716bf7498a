#pragma once

// What `trunkline bench` found, as text or JSON. Pure.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/step_bench.h"
#include "kernels/numerics.h"

namespace trunkline::cli {

struct BenchReport {
  std::string model, layers, simd;
  kernels::Numerics numerics = kernels::Numerics::kPortable;
  int threads = 1;
  int expert_workers = 0;  // 0: experts in this process
  int repeats = 0;

  // The machine, at the start of the run. Bytes and operations per second.
  double read_one_thread = 0, read_all_threads = 0;
  double fma_one_thread = 0, fma_all_threads = 0;
  double dot_one_thread = 0, dot_all_threads = 0;  // 0: no class bf16dot here
  double cache_copy = 0;
  double fresh_memory_rate = 0;  // first writes to new memory, all threads
  double fork_join_seconds = 0;
  double ping_pong_seconds = 0;  // 0: not measured, there is no cluster

  // Loading, in this process.
  int64_t weight_bytes = 0;  // packed, held here
  double load_seconds = 0;
  double page_cache_rate = 0;  // of reading the same files, all threads
  int64_t resident_bytes = 0, resident_peak_bytes = 0;  // without the bench's

  std::vector<StepFigures> steps;
  std::vector<std::string> skipped;  // cases, and why
};

std::string BenchText(const BenchReport& report);
nlohmann::ordered_json BenchJson(const BenchReport& report);

// Parts of a step as the tables show them.
struct PhaseGroup {
  std::string name;  // "mixer"
  double seconds = 0;
};
std::vector<PhaseGroup> PhaseGroups(const PhaseSeconds& phases);
// What is neither a projection nor an expert nor the head: scan, attention,
// router, norms, combine, sampling.
double SmallPartsSeconds(const PhaseSeconds& phases);

}  // namespace trunkline::cli
