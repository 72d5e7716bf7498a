#pragma once

// A coordinator process: the production core with its store (durable_
// coordinator.h) behind simulated calls, in the place of coordinator_host and
// the gRPC services. With several of them one leads: it holds the store's
// lease, and another opens the store when that has run out.

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/durable_coordinator.h"
#include "coordinator/rebalance.h"
#include "sim/network.h"
#include "sim/sim_store.h"
#include "sim/world.h"

namespace trunkline::sim {

// Who leads, as the store knows it: what an etcd lease is in production.
struct LeaderLease {
  Place holder = 0;
  bool held = false;
  absl::Time end = absl::InfinitePast();  // world time
};

class SimCoordinator {
 public:
  struct Options {
    coordinator::CoreOptions core;
    coordinator::RebalanceOptions rebalance;
    absl::Duration leader_lease = absl::Seconds(2);
    bool alone = true;  // the only one: opens the store at once
  };
  // What a watcher is sent.
  using OnView = std::function<void(const control::ClusterView&)>;

  SimCoordinator(World* world, Network* network, SimDisk* disk,
                 LeaderLease* lease, Place place, const Options& options);
  SimCoordinator(const SimCoordinator&) = delete;
  SimCoordinator& operator=(const SimCoordinator&) = delete;
  ~SimCoordinator();

  Place place() const { return place_; }
  bool leads() const { return durable_ != nullptr; }
  // Of a leader whose store answers; else null.
  const coordinator::DurableCoordinator* durable() const {
    return durable_.get();
  }
  coordinator::Moment At() const;
  void JumpClock(absl::Duration monotonic, absl::Duration wall);

  // Runs in the process: later when it is paused.
  void Mail(std::function<void()> work);
  void Resume();

  // Inside Mail only.
  coordinator::Reply Submit(const coordinator::Event& event);
  absl::StatusOr<control::ClusterView> View();
  // OK when this is the leader and its store answers: what it then shows was
  // true at some moment of the call.
  absl::Status ConfirmLead();
  absl::StatusOr<coordinator::RebalanceSnapshot> Snapshot();
  absl::Status OpenWatch(WorkerId worker, uint64_t incarnation,
                         uint64_t cluster_id, Place watcher, uint64_t stream,
                         OnView on_view);
  void CloseWatch(uint64_t stream) { watchers_.erase(stream); }

 private:
  struct Watcher {
    Place place = 0;
    OnView on_view;
    uint64_t sent_epoch = 0, sent_revision = 0;
    absl::Time last_ready = absl::InfinitePast();
  };
  void After(absl::Duration delay, void (SimCoordinator::*what)());
  void Lead();
  void StepDown(const std::string& why);
  void KeepLease();
  void Take(coordinator::DurableCoordinator::Outcome* outcome);
  void ScheduleTick();
  void Tick();
  void Publish();
  void PlanRebalanceOnce();
  void PumpWatcher(uint64_t stream);

  World* const world_;
  Network* const network_;
  SimDisk* const disk_;
  LeaderLease* const lease_;
  const Place place_;
  const Options options_;
  ProcessClock clock_;
  absl::Duration wall_offset_ = absl::Hours(24 * 365 * 50);
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::unique_ptr<coordinator::DurableCoordinator> durable_;
  control::ClusterView published_;
  std::map<uint64_t, Watcher> watchers_;
  std::deque<std::function<void()>> held_mail_;  // while paused
  absl::Time tick_at_ = absl::InfiniteFuture();  // world time, scheduled
  bool publish_scheduled_ = false;
};

}  // namespace trunkline::sim
