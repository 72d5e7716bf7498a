#pragma once

// The coordinator's core: who is in the cluster and which placement version is
// at which point of its life. A value that takes events and the time and says
// what to do; no socket, thread, clock, file or log. The same core runs behind
// coordinator_server and in the simulator. Not thread-safe.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "control/cluster_view.h"
#include "coordinator/accuracy_gate.h"
#include "coordinator/coordinator_action.h"
#include "coordinator/coordinator_event.h"
#include "coordinator/load_ledger.h"
#include "coordinator/membership.h"
#include "coordinator/placement_driver.h"
#include "coordinator/placement_store.h"

namespace trunkline::coordinator {

struct CoreOptions {
  MembershipOptions membership;
  DriverOptions driver;
  // After so long without rows an expert's load counts half.
  absl::Duration load_half_life = absl::Minutes(2);
  // What every worker has to compute in; empty: what the first one does.
  std::string numerics_class;
  // How often the edge is asked to plan a rebalance; zero: never.
  absl::Duration rebalance_interval = absl::ZeroDuration();

  absl::Status Validate() const;
};

class Coordinator {
 public:
  // contents: what the store holds. first_revision: above every revision that
  // was shown in this epoch (1 after a start).
  Coordinator(CoreOptions options, const StoreContents& contents,
              uint64_t first_revision, Moment moment);
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  Actions Step(const Event& event, Moment moment);
  Actions Tick(Moment moment);
  // When Tick has something to do, if nothing happens before.
  absl::Time NextDeadline() const;

  // The view with its revision, as of the last Step or Tick.
  control::ClusterView View() const;
  uint64_t revision() const { return revision_; }
  const ClusterRecord& cluster() const { return cluster_; }
  const Membership& membership() const { return membership_; }
  const PlacementDriver& driver() const { return driver_; }
  const LoadLedger& loads() const { return loads_; }
  const AccuracyGate& accuracy() const { return accuracy_; }
  const CoreOptions& options() const { return options_; }

 private:
  Reply Handle(const RegisterEvent& event, DriverContext& context);
  Reply Handle(const HeartbeatEvent& event, DriverContext& context);
  Reply Handle(const LeaveEvent& event, DriverContext& context);
  Reply Handle(const ApplyEvent& event, DriverContext& context);
  Reply Handle(const RollbackEvent& event, DriverContext& context);
  Reply Handle(const AbandonEvent& event, DriverContext& context);
  Reply Handle(const PinEvent& event, DriverContext& context);
  Reply Handle(const DrainEvent& event, DriverContext& context);
  Reply Handle(const RecordEvent& event, DriverContext& context);
  // Compares a trunk's canary, and goes back when its bits are others.
  void TakeCanary(const control::Heartbeat& heartbeat, DriverContext& context);
  absl::Status GoBackTo(const AccuracyGate::Mismatch& mismatch,
                        DriverContext& context);
  bool RebalanceIsDue(absl::Time now);
  absl::Status CheckCluster(uint64_t cluster_id) const;
  absl::Status CheckLoads(const control::Report& report) const;
  Actions Run(const Event* event, Moment moment);
  void Settle(bool forced, DriverContext& context, Actions* actions);
  void Collect(bool cluster_changed, Actions* actions);

  const CoreOptions options_;
  ClusterRecord cluster_;
  Membership membership_;
  PlacementDriver driver_;
  LoadLedger loads_;
  AccuracyGate accuracy_;
  absl::Time rebalance_at_;
  uint64_t revision_;
  // Advancing walks whole maps; heartbeats that say nothing new skip it.
  uint64_t settled_generation_ = 0;
  absl::Time settle_at_ = absl::InfinitePast();
};

}  // namespace trunkline::coordinator
