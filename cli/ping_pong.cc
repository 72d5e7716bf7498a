#include "cli/ping_pong.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "transport/transport_factory.h"

namespace trunkline::cli {
namespace {

using transport::Event;
using transport::Message;
using transport::Transport;

constexpr size_t kMessageBytes = 8;
constexpr int kWarmTrips = 50;

// Sends every message back until it is destroyed.
class Echo {
 public:
  explicit Echo(Transport* transport)
      : transport_(transport), engine_([this] { Run(); }) {}
  ~Echo() {
    stop_ = true;
    transport_->Wake();
    engine_.join();
  }

 private:
  void Run() {
    std::vector<Event> events;
    while (!stop_) {
      events.clear();
      transport_->Poll(absl::Seconds(1), &events);
      for (Event& event : events) {
        if (event.kind == Event::Kind::kReceived)
          transport_->Send(event.connection, std::move(event.message), 0);
      }
    }
  }

  Transport* const transport_;
  std::atomic<bool> stop_{false};
  std::thread engine_;
};

// Polls until an event of that kind came; its message goes to `message`.
absl::Status Await(Transport* transport, Event::Kind kind, Message* message) {
  std::vector<Event> events;
  while (true) {
    events.clear();
    transport->Poll(absl::Seconds(1), &events);
    for (Event& event : events) {
      if (event.kind == Event::Kind::kPeerDown) return event.status;
      if (event.kind != kind) continue;
      if (message != nullptr) *message = std::move(event.message);
      return absl::OkStatus();
    }
  }
}

}  // namespace

absl::StatusOr<double> PingPongSeconds(const std::string& transport_kind,
                                       int repeats) {
  TL_ASSIGN_OR_RETURN(const std::unique_ptr<Transport> far,
                      transport::MakeTransport(transport_kind, {}));
  TL_ASSIGN_OR_RETURN(const std::string address, far->Listen("127.0.0.1:0"));
  TL_ASSIGN_OR_RETURN(const std::unique_ptr<Transport> near,
                      transport::MakeTransport(transport_kind, {}));
  const Echo echo(far.get());
  TL_ASSIGN_OR_RETURN(const transport::ConnectionId connection,
                      near->Connect(address));
  TL_RETURN_IF_ERROR(Await(near.get(), Event::Kind::kConnected, nullptr));
  Message message = near->Allocate(kMessageBytes);
  std::vector<double> seconds;
  for (int trip = 0; trip < kWarmTrips + repeats; ++trip) {
    const auto begin = std::chrono::steady_clock::now();
    near->Send(connection, std::move(message), 0);
    TL_RETURN_IF_ERROR(Await(near.get(), Event::Kind::kReceived, &message));
    if (trip < kWarmTrips) continue;
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
            .count());
  }
  near->Release(std::move(message));
  std::nth_element(seconds.begin(), seconds.begin() + repeats / 2,
                   seconds.end());
  return seconds[static_cast<size_t>(repeats / 2)];
}

}  // namespace trunkline::cli
