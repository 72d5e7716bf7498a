// trunkline-sim: replays one seed exactly, or runs many.

#include <cstdint>
#include <cstdio>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "sim/sim_report.h"
#include "sim/sim_run.h"

namespace {

using namespace trunkline::sim;

int RunOne(RunOptions options, bool trace) {
  options.keep_lines = trace;
  const RunResult result = RunSeed(options);
  for (const std::string& line : result.lines)
    std::printf("%s\n", line.c_str());
  std::printf("%s\n", DescribeRun(result).c_str());
  return result.violation.empty() ? 0 : 1;
}

int RunMany(RunOptions options, uint64_t count) {
  SimTotals totals;
  const uint64_t first = options.seed;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    options.seed = seed;
    const RunResult result = RunSeed(options);
    totals.Add(result);
    if (!result.violation.empty()) {
      std::printf("%s\n", DescribeRun(result).c_str());
      std::fflush(stdout);
    }
  }
  std::printf("%s\n", totals.Describe().c_str());
  return totals.violations() == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Runs a whole Trunkline cluster (the production cores) in simulated "
      "time, with faults drawn from a seed, and checks it after every event.");
  app.require_subcommand(0, 1);
  RunOptions options;
  uint64_t seeds = 1;
  bool trace = false, no_faults = false;
  std::string log_level = "off";
  app.add_option("--seed", options.seed, "The seed to run, or the first one")
      ->capture_default_str();
  app.add_option("--seeds", seeds, "How many seeds to run, one after another")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_flag("--trace", trace, "Print what happens (one seed only)");
  app.add_flag("--no-faults", no_faults, "Nothing fails and nobody operates");
  app.add_option("--log-level", log_level,
                 "What the cores' edges log to stderr: trace, debug, info, "
                 "warn, error, off")
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const absl::Status logging = trunkline::InitLogging("sim", "", log_level);
  if (!logging.ok()) {
    std::fprintf(stderr, "%s\n", std::string(logging.message()).c_str());
    return 2;
  }
  if (trace && seeds != 1) {
    std::fprintf(stderr, "--trace prints one run; --seeds is %lu\n",
                 static_cast<unsigned long>(seeds));
    return 2;
  }
  options.faults = !no_faults;
  return seeds == 1 ? RunOne(options, trace) : RunMany(options, seeds);
}
