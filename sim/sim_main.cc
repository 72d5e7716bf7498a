// trunkline-sim: replays one seed exactly, or runs many.

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "sim/scale.h"
#include "sim/scenario.h"
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

int RunScenarios(const std::vector<std::string>& files, bool trace) {
  int failed = 0;
  for (const std::string& file : files) {
    const auto scenario = ReadScenario(file);
    if (!scenario.ok()) {
      std::fprintf(stderr, "%s\n",
                   std::string(scenario.status().message()).c_str());
      return 2;
    }
    const RunResult result = RunScenario(*scenario, trace);
    for (const std::string& line : result.lines)
      std::printf("%s\n", line.c_str());
    std::printf("%s\n%s\n%s\n", scenario->name.c_str(), scenario->claim.c_str(),
                DescribeRun(result).c_str());
    failed += !result.violation.empty();
  }
  return failed == 0 ? 0 : 1;
}

int PrintScale(int tokens, const ScaleCosts& costs) {
  const auto table = ScaleTable(tokens, costs);
  if (!table.ok()) {
    std::fprintf(stderr, "%s\n", std::string(table.status().message()).c_str());
    return 1;
  }
  std::printf("%s", table->c_str());
  return 0;
}

// The costs in the units that people measure them in.
struct ScaleFlags {
  int tokens = 64;
  double memory_gb_per_second = 273, link_gbit_per_second = 92,
         disk_gb_per_second = 3, teraflops = 30;
  double latency_us = 4, per_message_us = 1, trunk_layer_us = 60;

  void AddTo(CLI::App* app) {
    const auto add = [&](const char* name, double* value, const char* what) {
      app->add_option(name, *value, what)
          ->check(CLI::PositiveNumber)
          ->capture_default_str();
    };
    app->add_option("--tokens", tokens, "Rows of a step")
        ->check(CLI::Range(1, 4096))
        ->capture_default_str();
    add("--memory-gb-per-second", &memory_gb_per_second,
        "An expert worker's memory bandwidth");
    add("--link-gbit-per-second", &link_gbit_per_second,
        "What a machine's link carries");
    add("--disk-gb-per-second", &disk_gb_per_second,
        "How fast an expert worker loads shards");
    add("--teraflops", &teraflops, "An expert worker's arithmetic");
    add("--latency-us", &latency_us, "One way, in microseconds");
    add("--per-message-us", &per_message_us,
        "The trunk's time for one message, in microseconds");
    add("--trunk-layer-us", &trunk_layer_us,
        "The trunk's own work before each moe layer, in microseconds");
  }
  ScaleCosts Costs() const {
    ScaleCosts costs;
    costs.memory_bytes_per_second = memory_gb_per_second * 1e9;
    costs.link_bytes_per_second = link_gbit_per_second * 1e9 / 8;
    costs.disk_bytes_per_second = disk_gb_per_second * 1e9;
    costs.flops_per_second = teraflops * 1e12;
    costs.latency = absl::Microseconds(latency_us);
    costs.per_message = absl::Microseconds(per_message_us);
    costs.trunk_layer = absl::Microseconds(trunk_layer_us);
    return costs;
  }
};

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
  ScaleFlags scale_flags;
  CLI::App* const scale = app.add_subcommand(
      "scale",
      "Step time, traffic and rebalance time for 8 to 4096 expert workers, "
      "from the production plans and declared costs");
  scale_flags.AddTo(scale);
  std::vector<std::string> files;
  CLI::App* const scenario =
      app.add_subcommand("scenario", "Runs scenario files");
  scenario->add_option("files", files, "sim/scenarios/*.json")
      ->required()
      ->check(CLI::ExistingFile);
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
  if (scale->parsed())
    return PrintScale(scale_flags.tokens, scale_flags.Costs());
  if (scenario->parsed()) return RunScenarios(files, trace);
  options.faults = !no_faults;
  return seeds == 1 ? RunOne(options, trace) : RunMany(options, seeds);
}
