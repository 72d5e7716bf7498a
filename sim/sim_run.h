#pragma once

// One seed, one run: a cluster drawn from the seed, a storm of faults and
// operators drawn from the seed, then calm, and the question whether everything
// comes back in bounded time.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "sim/sim_clients.h"
#include "sim/sim_cluster.h"

namespace trunkline::sim {

struct RunOptions {
  uint64_t seed = 1;
  bool faults = true;
  bool keep_lines = false;
  PlantedBug bug = PlantedBug::kNone;  // for the mutation check
  absl::Duration storm = absl::Seconds(12);
  // After the storm everything has to be well again within this.
  absl::Duration calm_most = absl::Seconds(150);
};

struct RunResult {
  uint64_t seed = 0;
  std::string violation;  // empty: none
  uint64_t digest = 0;
  SimClients::Outcomes outcomes;
  uint64_t rows = 0, answers = 0, commits = 0, admin_operations = 0;
  uint64_t from_peers = 0, not_from_peers = 0;  // experts asked for there
  uint64_t faults = 0, actions = 0, torn_writes = 0, fenced_writes = 0;
  absl::Duration simulated, settled_after;
  std::vector<std::string> lines;
};

// Every constant that a deployment may set, within what it may set it to, so
// that no invariant leans on a lucky value.
ClusterOptions DrawCluster(World* world);

RunResult RunSeed(const RunOptions& options);

// The end of every run, also of a scenario: brings calm, waits until all is
// well, proves that text comes right, that a drain ends and that nothing is
// left over. Fails the checker when not. Returns how long settling took.
class SimAdmin;
absl::Duration RunCalm(SimCluster* cluster, SimAdmin* admin,
                       absl::Duration within);
// Everything that a result says but what only the caller knows.
void FillResult(const SimCluster& cluster, const SimAdmin& admin,
                RunResult* result);

}  // namespace trunkline::sim
