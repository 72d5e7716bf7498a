#pragma once

// The core and its store as one: every step is committed before anybody hears
// of it. No thread, no socket; the edge brings events and the time, the
// simulator does the same with a simulated store. Not thread-safe.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/coordinator.h"
#include "coordinator/placement_store.h"

namespace trunkline::coordinator {

class DurableCoordinator {
 public:
  struct Outcome {
    Reply reply;                // of a Step
    bool view_changed = false;  // View() is newer than before
    bool plan_rebalance = false;
    std::vector<std::string> notes;
    Tally tally;
  };

  static absl::StatusOr<std::unique_ptr<DurableCoordinator>> Open(
      CoreOptions options, std::unique_ptr<PlacementStore> store,
      Moment moment);

  // A step whose change can not be committed did not happen: the reply is
  // UNAVAILABLE with the store's reason, and the core starts over from what the
  // store holds. A request that changes nothing is a read, and answered after a
  // barrier; heartbeats are no reads.
  Outcome Step(const Event& event, Moment moment);
  // The barrier: when the reply is OK, View() and core() were the newest at
  // some moment of this call. UNAVAILABLE: the store does not say so; with
  // control::LeaderIn when it says that another coordinator leads.
  Outcome Confirm(Moment moment);
  Outcome Tick(Moment moment);
  absl::Time NextDeadline() const;

  // While the store does not answer there is nothing true to show: the last
  // view stays in force.
  bool stale() const { return stale_; }
  // Another coordinator has begun a later epoch: this one is over, whatever it
  // is asked.
  bool deposed() const { return deposed_; }
  control::ClusterView View() const { return core_->View(); }  // not stale
  const Coordinator& core() const { return *core_; }
  uint64_t commits() const { return commits_; }
  uint64_t commit_failures() const { return commit_failures_; }

 private:
  DurableCoordinator(CoreOptions options, std::unique_ptr<PlacementStore> store)
      : options_(options), store_(std::move(store)) {}
  absl::Status Recover(Moment moment);
  Outcome Finish(Actions actions, Moment moment);
  Outcome StoreAway(const absl::Status& status) const;

  const CoreOptions options_;
  std::unique_ptr<PlacementStore> store_;
  std::unique_ptr<Coordinator> core_;
  // The core is ahead of the store: nothing may be done before Recover.
  bool stale_ = false;
  bool deposed_ = false;
  absl::Time recover_at_;
  uint64_t commits_ = 0, commit_failures_ = 0;
};

}  // namespace trunkline::coordinator
