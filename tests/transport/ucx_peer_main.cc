// A ucx peer in a process of its own, for the tests that kill, stop or cut off
// one:
//
//   ucx_peer serve ADDRESS COUNT BYTES PEER_TIMEOUT_MS
//   ucx_peer dial  ADDRESS COUNT BYTES PEER_TIMEOUT_MS
//
// On each connection it sends COUNT messages of BYTES (-1: without end), four
// at a time. It prints a line per fact: "listening ADDRESS", "up", "received N"
// (messages so far), "sent" (all COUNT handed on), "down STATUS". dial ends
// after "down"; serve ends when it is killed or its parent dies.

#include <signal.h>
#include <sys/prctl.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "transport/transport_factory.h"

namespace trunkline::transport {
namespace {

struct Load {
  long count;
  size_t bytes;
};

struct Progress {
  long started = 0;
  long finished = 0;
  long received = 0;
};

void Say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

void SendMore(Transport* transport, ConnectionId connection, const Load& load,
              Progress* progress) {
  while (progress->started - progress->finished < 4 &&
         (load.count < 0 || progress->started < load.count)) {
    ++progress->started;
    transport->Send(connection, transport->Allocate(load.bytes), 0);
  }
}

int Run(const std::string& role, const std::string& address, const Load& load,
        absl::Duration peer_timeout) {
  Options options;
  options.peer_timeout = peer_timeout;
  auto made = MakeTransport("ucx", options);
  if (!made.ok()) {
    Say("failed " + made.status().ToString());
    return 1;
  }
  Transport* const transport = made->get();
  if (role == "serve") {
    auto listening = transport->Listen(address);
    Say(listening.ok() ? "listening " + *listening
                       : "failed " + listening.status().ToString());
    if (!listening.ok()) return 1;
  } else if (auto id = transport->Connect(address); !id.ok()) {
    Say("failed " + id.status().ToString());
    return 1;
  }
  std::map<ConnectionId, Progress> connections;
  while (true) {
    std::vector<Event> events;
    transport->Poll(absl::Seconds(1), &events);
    for (Event& event : events) {
      Progress& progress = connections[event.connection];
      switch (event.kind) {
        case Event::Kind::kAccepted:
        case Event::Kind::kConnected:
          Say("up");
          SendMore(transport, event.connection, load, &progress);
          break;
        case Event::Kind::kReceived:
          transport->Release(std::move(event.message));
          if (load.count == 0)
            Say("received " + std::to_string(++progress.received));
          break;
        case Event::Kind::kSendDone:
          if (!event.status.ok()) break;
          if (++progress.finished == load.count) Say("sent");
          SendMore(transport, event.connection, load, &progress);
          break;
        case Event::Kind::kPeerDown:
          Say("down " + event.status.ToString());
          connections.erase(event.connection);
          if (role == "dial") return 0;
          break;
      }
    }
  }
}

}  // namespace
}  // namespace trunkline::transport

int main(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (argc != 6) {
    std::fprintf(stderr,
                 "usage: ucx_peer serve|dial ADDRESS COUNT BYTES "
                 "PEER_TIMEOUT_MS\n");
    return 2;
  }
  return trunkline::transport::Run(
      argv[1], argv[2],
      {std::atol(argv[3]), static_cast<size_t>(std::atol(argv[4]))},
      absl::Milliseconds(std::atol(argv[5])));
}
