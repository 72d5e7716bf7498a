#pragma once

// transport::Transport over the simulated network: the trunk's link and the
// expert worker's data path run on it as they do on UCX. Keeps the promises of
// transport.h; what the network breaks beyond them arrives broken.

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sim/network.h"
#include "sim/world.h"
#include "transport/transport.h"

namespace trunkline::sim {

class SimTransport;

// The data plane's wires. Outlives its transports.
class Fabric {
 public:
  // Sees every message as it is sent. `pipe` names the connection for both ends
  // and is never used again.
  using Tap = std::function<void(Place from, Place to, uint64_t pipe,
                                 const transport::Message& message)>;

  Fabric(World* world, Network* network);
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;

  void OnSend(Tap tap) { on_send_ = std::move(tap); }
  size_t messages_on_the_way() const { return on_the_way_; }

 private:
  friend class SimTransport;
  struct Letter {
    transport::Message message;
    uint64_t token = 0;
    absl::Time ready;
    bool completed = false;  // its kSendDone was given
  };
  struct End {
    SimTransport* owner = nullptr;  // null: gone
    Place place = 0;
    transport::ConnectionId id;
    bool open = false;
    absl::Time silent_since = absl::InfiniteFuture();
    std::deque<Letter> outgoing;
    absl::Time last_ready = absl::InfinitePast();
    bool pumping = false;
  };
  struct Pipe {
    uint64_t number = 0;
    End ends[2];
  };
  using PipePtr = std::shared_ptr<Pipe>;

  void Dial(SimTransport* from, transport::ConnectionId id,
            const std::string& address);
  void Join(SimTransport* from, transport::ConnectionId id, SimTransport* to);
  void Post(const PipePtr& pipe, int side, transport::Message message,
            uint64_t token);
  void Pump(const PipePtr& pipe, int side);
  void Deliver(const PipePtr& pipe, int side);
  // This end is over; the other one hears of it if it can.
  void Close(const PipePtr& pipe, int side, const absl::Status& why,
             bool tell_owner, bool tell_peer);
  void LookForSilence(const PipePtr& pipe, int side);
  bool Hears(const Pipe& pipe, int side) const;
  void OnNetworkChange();
  void Forget(SimTransport* transport, bool tell_peers);

  World* const world_;
  Network* const network_;
  Tap on_send_;
  std::map<std::string, SimTransport*> listeners_;
  std::vector<std::weak_ptr<Pipe>> pipes_;
  uint64_t next_connection_ = 1;
  size_t on_the_way_ = 0;
};

class SimTransport final : public transport::Transport {
 public:
  // wake: there is something to Poll. fabric outlives the transport.
  SimTransport(Fabric* fabric, World* world, Place place,
               std::function<void()> wake);
  // A killed process: peers hear a reset.
  ~SimTransport() override;
  // Before the destructor: nobody hears anything (a power cut).
  void VanishSilently() { silent_end_ = true; }

  absl::StatusOr<std::string> Listen(const std::string& address) override;
  absl::StatusOr<transport::ConnectionId> Connect(
      const std::string& address) override;
  void Disconnect(transport::ConnectionId connection) override;
  void Send(transport::ConnectionId connection, transport::Message message,
            uint64_t token) override;
  void Poll(absl::Duration max_wait,
            std::vector<transport::Event>* events) override;
  void Wake() override { wake_(); }
  transport::Message Allocate(size_t size) override;
  void Release(transport::Message message) override;
  std::string Name() const override { return "simulated"; }

  bool has_events() const { return !inbox_.empty(); }
  // Messages in the owner's hands: allocated or received, not sent or released.
  int64_t messages_held() const { return held_; }
  // May change every message before it leaves.
  void SetTouch(std::function<void(transport::Message&)> touch) {
    touch_ = std::move(touch);
  }
  // Answers and frames leave so much later: the time that making them took.
  void SetSendDelay(absl::Duration delay) { send_delay_ = delay; }
  Place place() const { return place_; }

 private:
  friend class Fabric;
  void Push(transport::Event event);
  // The dial came to nothing.
  void EndDial(transport::ConnectionId id, const absl::Status& why);

  Fabric* const fabric_;
  World* const world_;
  const Place place_;
  const std::function<void()> wake_;
  std::map<transport::ConnectionId, std::pair<Fabric::PipePtr, int>> ends_;
  // What was sent before the connection stands.
  std::map<transport::ConnectionId,
           std::vector<std::pair<transport::Message, uint64_t>>>
      dialling_;
  std::deque<transport::Event> inbox_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  int64_t held_ = 0;
  absl::Duration send_delay_;
  std::function<void(transport::Message&)> touch_;
  bool silent_end_ = false;
};

}  // namespace trunkline::sim
