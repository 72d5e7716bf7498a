#pragma once

// A whole cluster in one thread: coordinators, trunks, expert workers and
// clients, all of them the production cores, over a simulated clock, network
// and store. Machines stay, processes come and go.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "prometheus/registry.h"
#include "sim/cluster_checker.h"
#include "sim/network.h"
#include "sim/sim_clients.h"
#include "sim/sim_control.h"
#include "sim/sim_coordinator.h"
#include "sim/sim_expert.h"
#include "sim/sim_model.h"
#include "sim/sim_store.h"
#include "sim/sim_transport.h"
#include "sim/sim_trunk.h"
#include "sim/world.h"

namespace trunkline::sim {

struct ClusterOptions {
  int coordinators = 1, trunks = 1, experts = 3;
  int moe_layers = 2, experts_per_layer = 6, top_k = 2;
  NetworkOptions network;
  double late_registrations = 0;  // that arrive once more, seconds later
  SimCoordinator::Options coordinator;
  SimTrunk::Options trunk;
  // Per expert machine, cyclically; 0: not limited.
  std::vector<uint64_t> memory_bytes = {0};
  bool experts_from_peers = false;  // where a peer has them loaded
  absl::Duration load_time = absl::Milliseconds(2);  // of one expert
  // An ended or killed process is started again after so long, by whoever
  // supervises it; infinite: not at all.
  absl::Duration restart_after = absl::Seconds(1);
};

class SimCluster {
 public:
  SimCluster(World* world, const ClusterOptions& options);
  SimCluster(const SimCluster&) = delete;
  SimCluster& operator=(const SimCluster&) = delete;
  ~SimCluster();

  // Starts every process.
  void Boot();
  // Runs until `end` or the first violation.
  void RunUntil(absl::Time end);
  void RunFor(absl::Duration time) { RunUntil(world_->now() + time); }
  // Runs until `done`, the time is over or the first violation; true: done.
  bool RunUntilDone(absl::Duration within, const std::function<bool()>& done);

  // Places: coordinators first, then trunks, then expert workers.
  enum class Kind { kCoordinator, kTrunk, kExpert };
  Place PlaceOf(Kind kind, int index) const;
  Place store_place() const { return lease_.store; }
  void DropLeaderKey();
  // Of the coordinators that run.
  uint64_t canary_rollbacks() const;
  Kind KindOf(Place place) const;
  const std::vector<Place>& processes() const { return all_; }

  // `silent`: peers hear no reset.
  void Kill(Place place, bool silent);
  void StartProcess(Place place);
  void Pause(Place place);
  void Resume(Place place);
  void JumpClock(Place place, absl::Duration monotonic, absl::Duration wall);
  void Terminate(Place expert);
  bool running(Place place) const;
  void SetSupervised(bool supervised) { supervised_ = supervised; }

  // Everything works again: cuts heal, processes run, disks and memory are
  // well.
  void Heal();
  // Is one version active and served, nothing under way, nothing missing?
  std::string WhyNotSettled() const;

  World& world() { return *world_; }
  const World& world() const { return *world_; }
  const SimDisk& disk() const { return disk_; }
  const SimClients& clients() const { return clients_; }
  const ClusterChecker& checker() const { return checker_; }
  Network& network() { return network_; }
  Fabric& fabric() { return fabric_; }
  ControlPlane& plane() { return plane_; }
  SimDisk& disk() { return disk_; }
  SimModel& model() { return model_; }
  SimClients& clients() { return clients_; }
  ClusterChecker& checker() { return checker_; }
  ExpertMachine& expert_machine(int index) { return *expert_machines_[index]; }
  const std::vector<std::unique_ptr<ExpertMachine>>& expert_machines() const {
    return expert_machines_;
  }
  // Expert workers first, then trunks.
  int workers() const { return options_.experts + options_.trunks; }
  const std::string& worker_name(int index) const {
    return index < options_.experts
               ? expert_machines_[index]->name
               : trunk_machines_[index - options_.experts]->name;
  }
  const ClusterOptions& options() const { return options_; }
  const std::string& violation() const { return checker_.violation(); }
  // The leader whose store is the one in force; null: none.
  SimCoordinator* leader();
  std::vector<SimTrunk*> trunks();
  std::vector<SimExpert*> experts();

 private:
  ClusterState StateForChecker();
  void OnProcessGone(Place place);
  void OnRefused(Place place);
  void StartExpert(int index);
  void StartTrunk(int index);
  void StartCoordinator(int index);

  World* const world_;
  const ClusterOptions options_;
  Network network_;
  Fabric fabric_;
  ControlPlane plane_;
  SimDisk disk_;
  LeaderLease lease_;
  SimModel model_;
  prometheus::Registry registry_;
  expert::ExpertMetrics metrics_;
  std::vector<Place> all_;
  std::vector<std::unique_ptr<TrunkMachine>> trunk_machines_;
  std::vector<std::unique_ptr<ExpertMachine>> expert_machines_;
  ClusterChecker checker_;
  SimClients clients_;
  bool supervised_ = true;

  std::vector<std::unique_ptr<SimCoordinator>> coordinators_;
  std::vector<std::unique_ptr<SimTrunk>> trunks_;
  std::vector<std::unique_ptr<SimExpert>> experts_;
};

}  // namespace trunkline::sim
