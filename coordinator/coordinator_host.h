#pragma once

// The thin edge around the core that both gRPC services share: one lock, one
// thread that ticks, publishes views and writes the log, and one that plans
// rebalances when they are due. Leads with a core or follows without one; while
// it follows, everything asked of it is UNAVAILABLE, naming the leader where
// that is known. Thread-safe.

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "control/cluster_proto.h"
#include "coordinator/coordinator_metrics.h"
#include "coordinator/durable_coordinator.h"
#include "coordinator/rebalance.h"

namespace trunkline::coordinator {

class CoordinatorHost {
 public:
  using SharedView = std::shared_ptr<const control::wire::ClusterView>;
  // Called from the host's thread with every published view, in order. Views
  // that follow each other closely are published as one.
  using OnView = std::function<void(SharedView, bool ready)>;

  struct Callbacks {
    OnView on_view;
    // From the same thread, before the first view of a term and after the last:
    // OK, or why this coordinator does not lead.
    std::function<void(const absl::Status& leads)> on_role;
    // From the same thread: the store says that another coordinator leads.
    std::function<void()> on_deposed;
  };

  // Follows until Lead. metrics outlives the host. rebalance: limits of the
  // rebalances that the core asks for.
  CoordinatorHost(RebalanceOptions rebalance, CoordinatorMetrics* metrics);
  ~CoordinatorHost();  // Stop
  CoordinatorHost(const CoordinatorHost&) = delete;
  CoordinatorHost& operator=(const CoordinatorHost&) = delete;

  void Start(Callbacks callbacks);
  void Stop();  // idempotent; no callback comes afterwards

  // A term begins. leads_until: this coordinator leads for certain before that
  // moment of the monotonic clock, and answers nothing after it.
  void Lead(std::unique_ptr<DurableCoordinator> coordinator,
            std::function<absl::Time()> leads_until);
  // It ends. leader: "host:port" of who leads, empty when not known.
  void Follow(const std::string& leader, const std::string& why);

  // Takes one event, committed when this returns.
  Reply Submit(const Event& event, const char* method);
  // Reads are linearizable: what they tell was true at some moment of the call.
  // UNAVAILABLE while this one follows, and while the store does not confirm
  // that it leads. They may take as long as a commit.
  // As of now, with load progress.
  absl::StatusOr<control::wire::ClusterView> View();
  // Runs `query` on the core under the lock.
  absl::Status Query(const std::function<void(const Coordinator&)>& query);
  absl::StatusOr<RebalanceSnapshot> Snapshot();

 private:
  void Loop();
  void PlanLoop();
  void PlanRebalanceOnce();
  void Record(DurableCoordinator::Outcome* outcome, uint64_t commits,
              uint64_t failures, absl::Time began);
  absl::Status CheckLeading() const;
  absl::Status ConfirmLead();
  bool Publishable() const {
    return view_changed_ && coordinator_ != nullptr && !coordinator_->stale();
  }
  bool SomethingToTell() const {
    return stopping_ || role_changed_ || deposed_ || !notes_.empty();
  }
  // The moment of the next tick.
  absl::Time NextTick() const;
  void TickIfDue();
  bool TellRole(std::unique_lock<std::mutex>& lock);
  void WriteNotes(std::unique_lock<std::mutex>& lock);
  void Publish(std::unique_lock<std::mutex>& lock);

  CoordinatorMetrics* const metrics_;
  Callbacks callbacks_;
  const RebalanceOptions rebalance_;
  std::thread thread_, planner_;

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::unique_ptr<DurableCoordinator> coordinator_;  // null: follows
  std::function<absl::Time()> leads_until_;
  absl::Status following_;  // why it follows, while it does
  bool role_changed_ = false;
  bool deposed_ = false;
  bool view_changed_ = true;  // the first view is published at the start
  bool stopping_ = false;
  bool plan_wanted_ = false;
  std::condition_variable plan_changed_;
  std::vector<std::string> notes_;
};

}  // namespace trunkline::coordinator
