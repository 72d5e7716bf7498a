#pragma once

// The thin edge around the core that both gRPC services share: one lock, one
// thread that ticks, publishes views and writes the log, and one that plans
// rebalances when they are due. Thread-safe.

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

  // metrics outlives the host. rebalance: limits of the rebalances that the
  // core asks for.
  CoordinatorHost(std::unique_ptr<DurableCoordinator> coordinator,
                  RebalanceOptions rebalance, CoordinatorMetrics* metrics);
  ~CoordinatorHost();  // Stop
  CoordinatorHost(const CoordinatorHost&) = delete;
  CoordinatorHost& operator=(const CoordinatorHost&) = delete;

  void Start(OnView on_view);
  void Stop();  // idempotent; on_view is not called afterwards

  // Takes one event, committed when this returns.
  Reply Submit(const Event& event, const char* method);
  // As of now, with load progress.
  control::wire::ClusterView View();
  // Runs `query` on the core under the lock; UNAVAILABLE while the store does
  // not answer.
  absl::Status Query(const std::function<void(const Coordinator&)>& query);
  absl::StatusOr<RebalanceSnapshot> Snapshot();

 private:
  void Loop();
  void PlanLoop();
  void PlanRebalanceOnce();
  void Record(DurableCoordinator::Outcome* outcome, uint64_t commits,
              uint64_t failures, absl::Time began);
  bool Publishable() const { return view_changed_ && !coordinator_->stale(); }
  void WriteNotes(std::unique_lock<std::mutex>& lock);
  void Publish(std::unique_lock<std::mutex>& lock);

  CoordinatorMetrics* const metrics_;
  OnView on_view_;
  const RebalanceOptions rebalance_;
  std::thread thread_, planner_;

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::unique_ptr<DurableCoordinator> coordinator_;
  SharedView last_view_;
  bool view_changed_ = true;  // the first view is published at the start
  bool stopping_ = false;
  bool plan_wanted_ = false;
  std::condition_variable plan_changed_;
  std::vector<std::string> notes_;
};

}  // namespace trunkline::coordinator
