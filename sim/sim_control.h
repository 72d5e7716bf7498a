#pragma once

// The control plane's calls and a worker's end of them: what coordinator_client
// does with threads and gRPC, here with simulated calls around the same session
// (control/worker_session.h).

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "control/worker_session.h"
#include "sim/network.h"
#include "sim/sim_coordinator.h"
#include "sim/world.h"

namespace trunkline::sim {

// Carries calls to the coordinators. A request or an answer may be lost; the
// caller's deadline ends the call then.
class ControlPlane {
 public:
  ControlPlane(World* world, Network* network)
      : world_(world), network_(network) {}

  void AddPlace(Place place) { places_.push_back(place); }
  void SetRunning(Place place, SimCoordinator* coordinator) {
    running_[place] = coordinator;  // null: dead
    ++life_[place];
  }
  // Another number for every process that ran at the place.
  uint64_t life(Place place) { return life_[place]; }
  uint64_t NextStream() { return ++streams_; }
  uint64_t NextProcess() { return ++processes_; }
  const std::vector<Place>& places() const { return places_; }
  SimCoordinator* running(Place place) const;

  // `request` runs in the coordinator's process; `done` is called exactly once
  // with its status, or with UNAVAILABLE or DEADLINE_EXCEEDED, unless *alive
  // has become false. What `request` captured tells its answer.
  void Call(Place from, Place to, absl::Duration timeout,
            std::shared_ptr<bool> alive,
            std::function<absl::Status(SimCoordinator&)> request,
            std::function<void(const absl::Status&)> done);
  // `request` arrives once more, long after its caller has given up, maybe when
  // that process has ended: a network may hold a message back.
  void ArriveLate(Place to,
                  std::function<absl::Status(SimCoordinator&)> request);
  // How much the control plane had to do since the start.
  uint64_t calls() const { return calls_; }
  // Registrations may come once more, late.
  void SetLate(double chance) { late_ = chance; }
  double late() const { return late_; }

 private:
  World* const world_;
  Network* const network_;
  std::vector<Place> places_;
  std::map<Place, SimCoordinator*> running_;
  std::map<Place, uint64_t> life_;
  uint64_t streams_ = 0, calls_ = 0, processes_ = 0;
  double late_ = 0;
};

// One worker process's client.
class SimControlClient {
 public:
  // As in CoordinatorClient::Callbacks. on_refused: the process has to end.
  struct Callbacks {
    std::function<void(const control::Identity&)> on_registered;
    std::function<void(const control::ClusterView&)> on_view;
    std::function<control::Report()> make_report;
    std::function<void(const absl::Status&)> on_refused;
  };

  SimControlClient(World* world, Network* network, ControlPlane* plane,
                   Place place, control::Registration registration,
                   Callbacks callbacks);
  ~SimControlClient();
  SimControlClient(const SimControlClient&) = delete;
  SimControlClient& operator=(const SimControlClient&) = delete;

  void ReportNow();
  // Says goodbye; nothing is called afterwards.
  void Leave();
  void Resume();  // the process goes on after a pause

  const control::FollowedView& followed() const { return followed_; }
  const control::WorkerSession& session() const { return session_; }

 private:
  using Work = std::function<void()>;
  void Run(Work work);  // now, or when the process goes on
  void After(absl::Duration delay, Work work);
  void Keep();
  void Register();
  void Beat();
  void OnResult(const absl::Status& status);
  void Watch();
  void OnStreamView(uint64_t stream, const control::ClusterView& view);
  void OnStreamEnd(uint64_t stream);
  void LookAtStream(uint64_t stream, absl::Time broken_since);
  Place target() const;

  World* const world_;
  Network* const network_;
  ControlPlane* const plane_;
  const Place place_;
  const control::Registration registration_;
  const Callbacks callbacks_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::vector<Work> held_;  // while the process is paused
  size_t target_ = 0;

  control::WorkerSession session_;
  control::FollowedView followed_;
  bool calling_ = false, report_now_ = false, ended_ = false;
  uint64_t wake_ = 0;  // the newest scheduled Keep counts
  std::optional<control::Identity> identity_;
  control::RetryBackoff watch_backoff_;
  uint64_t stream_ = 0;  // 0: none open
  Place stream_place_ = 0;
  uint64_t stream_life_ = 0, stream_terms_ = 0;
  bool stream_delivered_ = false;
};

}  // namespace trunkline::sim
