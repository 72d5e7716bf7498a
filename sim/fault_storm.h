#pragma once

// What goes wrong, when, and for how long: drawn from the seed. Stays within
// what a cluster must stand; what no cluster can stand (every copy of the store
// gone) is not in it.

#include <cstdint>
#include <memory>

#include "sim/sim_admin.h"
#include "sim/sim_cluster.h"

namespace trunkline::sim {

class FaultStorm {
 public:
  FaultStorm(SimCluster* cluster, SimAdmin* admin);
  ~FaultStorm() { *alive_ = false; }
  FaultStorm(const FaultStorm&) = delete;
  FaultStorm& operator=(const FaultStorm&) = delete;

  void Start();
  void Stop() { *alive_ = false; }
  uint64_t faults() const { return faults_; }

 private:
  void Later(absl::Duration delay, void (FaultStorm::*what)());
  void BreakSomething();
  void OperateSomething();
  void BreakProcess();
  void BreakNetwork();
  void BreakStore();
  void CutFromStore();
  void BreakMachine();
  Place AnyProcess();

  SimCluster* const cluster_;
  SimAdmin* const admin_;
  World& world_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  // This run's temper.
  absl::Duration fault_pause_most_, admin_pause_most_;
  bool breaks_processes_, breaks_network_, breaks_store_, breaks_machines_;
  uint64_t faults_ = 0;
};

}  // namespace trunkline::sim
