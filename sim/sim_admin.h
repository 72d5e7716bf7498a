#pragma once

// Operators: change, roll back, pin, drain and look, over calls that may be
// lost, and remember what they were told.

#include <functional>
#include <memory>
#include <string>

#include "sim/admin_history.h"
#include "sim/sim_cluster.h"

namespace trunkline::sim {

class SimAdmin {
 public:
  explicit SimAdmin(SimCluster* cluster);
  ~SimAdmin() { *alive_ = false; }
  SimAdmin(const SimAdmin&) = delete;
  SimAdmin& operator=(const SimAdmin&) = delete;

  // One random operation.
  void DoSomething();

  // told: with the reply's status; also DEADLINE_EXCEEDED when none came.
  using Told = std::function<void(const absl::Status&)>;
  // A random placement of the workers that are usable.
  void ApplyRandom();
  void Apply(placement::PlacementMap map, Told told);
  void Rollback();
  void Abandon();
  void Rebalance(const coordinator::RebalanceOptions& options);
  void Pin(bool pinned);
  void Drain(int index, bool drain, Told told = nullptr);
  void Look();

  // Until then operations that were asked may still arrive.
  size_t asking() const { return asking_; }
  const AdminHistory& history() const { return history_; }

 private:
  void Ask(std::function<absl::Status(SimCoordinator&)> request, Told told);
  absl::Time now() const;

  SimCluster* const cluster_;
  const Place place_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  AdminHistory history_;
  uint64_t next_pin_ = 1;
  size_t asking_ = 0;
};

}  // namespace trunkline::sim
