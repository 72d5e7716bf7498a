#pragma once

// A coordinator process: the production core with its store (durable_
// coordinator.h) behind simulated calls, in the place of coordinator_host and
// the gRPC services. With several of them one leads by the protocol of
// coordinator/etcd_election.h: it holds the store's lease, asks for it anew
// four times in its length, stops leading by its own clock before the store may
// give it to another, and may be cut off from the store.

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

// Who leads, as the store knows it: what the leader key is in etcd.
struct LeaderLease {
  Place store = 0;  // where it is kept
  Place holder = 0;
  uint64_t created = 0;                   // the term; grows with each
  absl::Time end = absl::InfinitePast();  // on the store's clock: world time
};

class SimCoordinator {
 public:
  struct Options {
    coordinator::CoreOptions core;
    coordinator::RebalanceOptions rebalance;
    absl::Duration leader_lease = absl::Seconds(2);
    bool alone = true;                  // the only one: opens the store at once
    std::function<void()> on_mismatch;  // a canary gave other bits
    std::function<void(const control::ClusterView&)> on_publish;
  };
  // What a watcher is sent.
  using OnView = std::function<void(const control::ClusterView&)>;

  SimCoordinator(World* world, Network* network, SimDisk* disk,
                 LeaderLease* lease, Place place, const Options& options);
  SimCoordinator(const SimCoordinator&) = delete;
  SimCoordinator& operator=(const SimCoordinator&) = delete;
  ~SimCoordinator();

  Place place() const { return place_; }
  // By its own clock, as CoordinatorHost::CheckLeading.
  bool leads() const {
    return durable_ != nullptr &&
           (options_.alone || clock_.Now() < leads_until_);
  }
  // How often it began to lead: a stream of views ends with its term.
  uint64_t terms() const { return terms_; }
  // Of a leader, also of one whose lease has run out; else null.
  const coordinator::DurableCoordinator* durable() const {
    return durable_.get();
  }
  coordinator::Moment At() const;
  void JumpClock(absl::Duration monotonic, absl::Duration wall);

  // The leader key is gone.
  void OnVacancy();

  // Runs in the process: later when it is paused.
  void Mail(std::function<void()> work);
  void Resume();

  // Inside Mail only.
  coordinator::Reply Submit(const coordinator::Event& event);
  absl::StatusOr<control::ClusterView> View();
  // As CoordinatorHost does before it answers from memory. OK: what this one
  // then shows was true at some moment of the call.
  absl::Status ConfirmLead();
  absl::StatusOr<coordinator::RebalanceSnapshot> Snapshot();
  absl::Status OpenWatch(WorkerId worker, uint64_t incarnation,
                         uint64_t cluster_id, Place watcher, uint64_t stream,
                         OnView on_view);
  uint64_t canary_rollbacks() const { return canary_rollbacks_; }
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
  void AskForLease();
  void KeepLease();
  void OnLease(absl::Time asked, uint64_t term);
  void StepDownIfDeposed();
  SimDisk::Road RoadToStore() const;
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
  uint64_t term_ = 0;  // as the store gave it; 0: none
  absl::Time leads_until_ = absl::InfinitePast();  // on clock_
  std::unique_ptr<coordinator::DurableCoordinator> durable_;
  control::ClusterView published_;
  std::map<uint64_t, Watcher> watchers_;
  std::deque<std::function<void()>> held_mail_;  // while paused
  absl::Time tick_at_ = absl::InfiniteFuture();  // world time, scheduled
  bool publish_scheduled_ = false;
  uint64_t canary_rollbacks_ = 0, terms_ = 0;
};

}  // namespace trunkline::sim
