#pragma once

// A scenario: a cluster, what happens to it and when, and what must come of it,
// in a JSON file (docs/simulator.md describes the format). The checker of every
// run checks a scenario too.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "sim/sim_run.h"

namespace trunkline::sim {

struct ScenarioEvent {
  absl::Duration at;
  std::string what;
  std::vector<std::string> arguments;
};

struct Scenario {
  std::string name, peer, claim;
  uint64_t seed = 1;
  ClusterOptions cluster;
  absl::Duration clients_pause = absl::Milliseconds(30);
  absl::Duration clients_from = absl::Milliseconds(1500),
                 until = absl::Seconds(10);
  bool boot = true;  // false: events start the processes
  bool calm = true;  // at the end everything is brought back
  std::vector<ScenarioEvent> events;
  // What must come of it; negative or zero durations: not asked.
  int64_t failed_most = -1, finished_least = -1;
  int64_t activated_least = -1, activated_most = -1, abandoned_least = -1;
  int64_t canary_rollbacks_least = 0;
  absl::Duration silence_most;
  bool settled = false;  // at `until`, with whoever runs then
};

// INVALID_ARGUMENT names the file and the field.
absl::StatusOr<Scenario> ReadScenario(const std::string& path);

// RunResult::violation also says which expectation was not met.
RunResult RunScenario(const Scenario& scenario, bool keep_lines);

}  // namespace trunkline::sim
