#include "sim/sim_run.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "sim/fault_storm.h"
#include "sim/sim_admin.h"

namespace trunkline::sim {

using absl::Milliseconds;
using absl::Seconds;

namespace {

void DrawControl(World* world, ClusterOptions* options) {
  coordinator::CoreOptions& core = options->coordinator.core;
  core.membership.lease = world->Between(Milliseconds(300), Seconds(2));
  core.membership.restart_leases = 3;
  coordinator::DriverOptions& driver = core.driver;
  driver.expert_workers = 1 + static_cast<int64_t>(world->Below(
                                  static_cast<uint64_t>(options->experts)));
  driver.replicas = 1 + static_cast<int64_t>(world->Below(std::min<uint64_t>(
                            3, static_cast<uint64_t>(driver.expert_workers))));
  driver.stage_timeout = world->Between(Seconds(1), Seconds(15));
  driver.trunk_grace = world->Between(Seconds(3), Seconds(20));
  driver.repair_delay = world->Between(Milliseconds(300), Seconds(4));
  driver.redundancy_delay = world->Between(Seconds(1), Seconds(20));
  driver.retry_delay = world->Between(Milliseconds(200), Seconds(4));
  driver.finished_kept = 2 + world->Below(30);
  driver.history_kept = 10 + world->Below(500);
  if (world->Chance(0.4))
    core.rebalance_interval = world->Between(Milliseconds(500), Seconds(4));
  options->coordinator.rebalance.min_gain = 0.02;
  options->coordinator.leader_lease =
      world->Between(Milliseconds(600), Seconds(3));
}

void DrawTrunk(World* world, SimTrunk::Options* options) {
  dispatch::LayerExchange::Limits& limits = options->link.limits;
  limits.worker_deadline = world->Between(Milliseconds(100), Seconds(4));
  limits.step_deadline =
      limits.worker_deadline + world->Between(Seconds(1), Seconds(15));
  limits.attempts_max = static_cast<uint16_t>(2 + world->Below(7));
  options->link.newer_view_wait = world->Between(Milliseconds(200), Seconds(5));
  options->link.peers.backoff_most =
      world->Between(Milliseconds(100), Seconds(2));
  options->link.peers.refusal_memory =
      world->Between(Milliseconds(50), Seconds(2));
  options->core.unready_patience =
      world->Between(Milliseconds(200), Seconds(5));
  options->core.waiting_max = 1 + world->Below(16);
  options->core.batch.rows_max = 2 + static_cast<int64_t>(world->Below(15));
  options->core.batch.prefill_chunk = 1 + static_cast<int64_t>(world->Below(6));
  options->sequences_max = 1 + static_cast<int64_t>(world->Below(5));
  options->tokens_max = 32;
  if (world->Chance(0.5)) options->canary_tokens = 12;
}

}  // namespace

ClusterOptions DrawCluster(World* world) {
  ClusterOptions options;
  options.coordinators = world->Chance(0.6) ? 1 : 2 + world->Chance(0.5);
  options.trunks = 1 + static_cast<int>(world->Below(3));
  options.experts = 2 + static_cast<int>(world->Below(4));
  options.moe_layers = 1 + static_cast<int>(world->Below(3));
  options.experts_per_layer = 3 + static_cast<int>(world->Below(6));
  options.top_k = 1 + static_cast<int>(world->Below(3));
  DrawControl(world, &options);
  DrawTrunk(world, &options.trunk);
  NetworkOptions& network = options.network;
  network.delay_most = world->Between(absl::Microseconds(50), Milliseconds(3));
  network.hiccup = world->Chance(0.5) ? 0.01 : 0.0005;
  network.peer_timeout = world->Between(Milliseconds(200), Seconds(1));
  if (world->Chance(0.3)) network.vanish = 0.002;
  if (world->Chance(0.3)) network.repeat = 0.01;
  if (world->Chance(0.3)) network.damage = 0.002;
  options.experts_from_peers = world->Chance(0.5);
  if (world->Chance(0.5)) options.late_registrations = 0.5;
  options.load_time = world->Between(absl::Microseconds(200), Milliseconds(40));
  if (world->Chance(0.3)) {
    // Room for about twice an even share, or three times.
    const int64_t all = options.moe_layers * options.experts_per_layer *
                        options.coordinator.core.driver.replicas * kExpertBytes;
    const auto share =
        static_cast<uint64_t>(all / options.experts + kExpertBytes);
    options.memory_bytes = {share * 2, share * 3};
  }
  return options;
}

absl::Duration RunCalm(SimCluster* cluster, SimAdmin* admin,
                       absl::Duration within) {
  World& world = cluster->world();
  world.Trace("calm");
  const absl::Time began = world.now();
  cluster->Heal();
  // What was asked in the storm arrives late; nobody takes back what is still
  // on its way.
  cluster->RunFor(Seconds(1));
  cluster->RunUntilDone(Seconds(4), [&] { return admin->asking() == 0; });
  // Operators take back what they asked for, until they are heard.
  std::vector<bool> undrained(static_cast<size_t>(cluster->workers()));
  const auto all_undrained = [&] {
    return std::count(undrained.begin(), undrained.end(), false) == 0;
  };
  while (cluster->violation().empty() && !all_undrained() &&
         world.now() < began + within) {
    for (size_t i = 0; i < undrained.size(); ++i) {
      if (undrained[i]) continue;
      admin->Drain(static_cast<int>(i), false,
                   [&undrained, i](const absl::Status& status) {
                     // A worker that nobody remembers is not drained either.
                     if (status.ok() || absl::IsNotFound(status))
                       undrained[i] = true;
                   });
    }
    admin->Pin(false);
    cluster->RunUntilDone(Seconds(4), [&] { return admin->asking() == 0; });
  }
  const auto well = [&] {
    return all_undrained() && cluster->WhyNotSettled().empty() &&
           cluster->clients().waiting() == 0;
  };
  cluster->clients().Stop();
  if (!cluster->RunUntilDone(began + within - world.now(), well)) {
    cluster->checker().Fail(
        "after faults stop, progress within bounded time",
        absl::StrCat("after ", absl::FormatDuration(world.now() - began), ": ",
                     cluster->WhyNotSettled(),
                     "; waiting: ", cluster->clients().DescribeWaiting(),
                     all_undrained() ? "" : "; an undrain was never heard"));
  }
  return world.now() - began;
}

namespace {

// The cluster is well: text comes, and comes right.
void ProveService(SimCluster* cluster) {
  // Trunks may still be dialling workers that came back.
  for (int attempt = 0; attempt < 20 && cluster->violation().empty();
       ++attempt) {
    const uint64_t finished = cluster->clients().outcomes().finished;
    for (int i = 0; i < 4; ++i) {
      cluster->clients().AskPatiently(Seconds(20));
      cluster->RunUntilDone(Seconds(30),
                            [&] { return cluster->clients().waiting() == 0; });
    }
    if (cluster->clients().outcomes().finished == finished + 4) return;
    cluster->RunFor(Seconds(1));
  }
  cluster->checker().Fail("after faults stop, progress within bounded time",
                          "requests keep failing");
}

// A drain ends, unless the others have no room for what is handed over.
void ProveDrain(SimCluster* cluster, SimAdmin* admin) {
  if (cluster->options().experts < 2 ||
      cluster->options().memory_bytes.front() != 0)
    return;
  bool heard = false;
  while (!heard && cluster->violation().empty()) {
    admin->Drain(0, true,
                 [&](const absl::Status& status) { heard = status.ok(); });
    cluster->RunUntilDone(Seconds(4), [&] { return admin->asking() == 0; });
  }
  const std::string name = cluster->expert_machine(0).name;
  const bool drained = cluster->RunUntilDone(Seconds(60), [&] {
    SimCoordinator* const leader = cluster->leader();
    if (leader == nullptr) return false;
    const auto view = leader->View();
    if (!view.ok()) return false;
    for (const control::WorkerView& worker : view->workers)
      if (worker.name == name) return worker.drained;
    return false;
  });
  if (!drained) cluster->checker().Fail("a drain ends", name);
}

}  // namespace

void FillResult(const SimCluster& cluster, const SimAdmin& admin,
                RunResult* result) {
  const World& world = cluster.world();
  result->seed = world.seed();
  result->violation = cluster.violation();
  result->digest = world.digest();
  result->outcomes = cluster.clients().outcomes();
  result->rows = cluster.checker().rows_checked();
  result->answers = cluster.checker().answers_checked();
  result->commits = cluster.checker().commits_checked();
  result->admin_operations = admin.history().operations();
  result->actions = world.actions_run();
  for (const auto& machine : cluster.expert_machines()) {
    result->from_peers += machine->from_peers;
    result->not_from_peers += machine->not_from_peers;
  }
  result->torn_writes = cluster.disk().torn_writes();
  result->fenced_writes = cluster.disk().fenced_writes();
  result->simulated = world.elapsed();
  result->lines = world.lines();
}

RunResult RunSeed(const RunOptions& options) {
  World world(options.seed);
  if (options.keep_lines) world.KeepLines();
  world.Plant(options.bug);
  ClusterOptions drawn = DrawCluster(&world);
  if (!options.faults) {
    NetworkOptions& network = drawn.network;
    network.hiccup = network.vanish = network.repeat = network.damage = 0;
  }
  if (world.has(PlantedBug::kNoDeadlines)) {
    drawn.trunk.link.limits.worker_deadline = absl::Hours(24);
    drawn.trunk.link.limits.step_deadline = absl::Hours(24);
  }
  SimCluster cluster(&world, drawn);
  SimAdmin admin(&cluster);
  cluster.Boot();
  cluster.clients().Start(world.Between(Milliseconds(20), Milliseconds(400)));
  FaultStorm storm(&cluster, &admin);
  if (options.faults) storm.Start();
  cluster.RunFor(options.storm);
  storm.Stop();
  RunResult result;
  if (cluster.violation().empty())
    result.settled_after = RunCalm(&cluster, &admin, options.calm_most);
  if (cluster.violation().empty()) ProveService(&cluster);
  if (cluster.violation().empty()) ProveDrain(&cluster, &admin);
  if (cluster.violation().empty()) {
    cluster.RunFor(Seconds(2));
    // A repair that the drain has led to may be taking experts from peers, and
    // canaries may run under what it made.
    cluster.RunUntilDone(Seconds(60), [&] {
      for (const SimTrunk* trunk : cluster.trunks())
        if (!trunk->idle()) return false;
      return cluster.fabric().messages_on_the_way() == 0 &&
             cluster.WhyNotSettled().empty();
    });
    cluster.checker().CheckIdle(cluster.fabric().messages_on_the_way());
  }
  if (cluster.violation().empty()) {
    const std::string why = admin.history().Check();
    if (!why.empty())
      cluster.checker().Fail("admin history is linearizable", why);
  }
  result.faults = storm.faults();
  FillResult(cluster, admin, &result);
  return result;
}

}  // namespace trunkline::sim
