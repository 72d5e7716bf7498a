#pragma once

// The production PeerLoader, which waits for its peers in the middle of a call,
// in simulated time: a fiber, over a transport of its own on the simulated
// wires. What ExpertStore's loader thread does with it.

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "expert_worker/peer_loader.h"
#include "sim/fiber.h"
#include "sim/network.h"
#include "sim/sim_transport.h"
#include "sim/world.h"

namespace trunkline::sim {

class SimPeerLoader {
 public:
  using Done = std::function<void(absl::StatusOr<expert::FetchedExpert>)>;

  SimPeerLoader(World* world, Network* network, Fabric* fabric, Place place,
                const Clock* clock);
  // What is under way is given up.
  ~SimPeerLoader();
  SimPeerLoader(const SimPeerLoader&) = delete;
  SimPeerLoader& operator=(const SimPeerLoader&) = delete;

  void UpdateView(const control::ClusterView& view, WorkerId self) {
    peers_.Update(view, self);
  }
  // done: once, never from inside this call; not at all once this object is
  // gone. One after the other, in the order in which they were asked for.
  void Fetch(const expert::ExpertRequest& request, Done done);

  void VanishSilently() {
    if (wire_ != nullptr) wire_->VanishSilently();
  }
  const expert::PeerLoader::Counts& counts() const { return loader_.counts(); }
  // Of its transport, as SimTransport says it; 0 before there is one.
  int64_t messages_held() const;

 private:
  class Wire;
  struct Job {
    expert::ExpertRequest request;
    Done done;
  };
  void Begin();
  // The fiber's: until something has come or `most` has passed.
  void Wait(absl::Duration most);
  void GoOn(uint64_t wait);

  World* const world_;
  Network* const network_;
  Fabric* const fabric_;
  const Place place_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  expert::PeerDirectory peers_;
  SimTransport* wire_ = nullptr;  // loader_'s
  expert::PeerLoader loader_;
  std::deque<Job> jobs_;          // the fiber reads the first one
  std::unique_ptr<Fiber> fiber_;  // of the first job
  uint64_t wait_ = 0;             // numbers waits
  bool waiting_ = false, given_up_ = false;
};

}  // namespace trunkline::sim
