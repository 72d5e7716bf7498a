// Round trips and bandwidth of the transport backends, two peers in one
// process, each with its own engine thread as in production.
//
//   transport_bench --benchmark_filter=ucx
//
// UCX_TLS and the other UCX_ variables choose what ucx runs over.

#include <benchmark/benchmark.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "transport/transport_factory.h"

namespace trunkline::transport {
namespace {

[[noreturn]] void Die(const absl::Status& status) {
  std::fprintf(stderr, "transport_bench: %s\n", status.ToString().c_str());
  std::exit(1);
}

std::unique_ptr<Transport> Make(const std::string& kind) {
  auto made = MakeTransport(kind, {});
  if (!made.ok()) Die(made.status());
  return *std::move(made);
}

// A peer that answers every message; with `echo` by the message itself, else by
// an empty one.
class Responder {
 public:
  Responder(const std::string& kind, bool echo)
      : transport_(Make(kind)), echo_(echo) {
    auto address = transport_->Listen("127.0.0.1:0");
    if (!address.ok()) Die(address.status());
    address_ = *address;
    engine_ = std::thread([this] { Run(); });
  }
  ~Responder() {
    stop_ = true;
    transport_->Wake();
    engine_.join();
  }
  const std::string& address() const { return address_; }

 private:
  void Run() {
    std::vector<Event> events;
    while (!stop_) {
      events.clear();
      transport_->Poll(absl::Seconds(1), &events);
      for (Event& event : events) {
        if (event.kind != Event::Kind::kReceived) continue;
        Message answer = echo_ ? std::move(event.message) : Message{};
        if (!echo_) transport_->Release(std::move(event.message));
        transport_->Send(event.connection, std::move(answer), 0);
      }
    }
  }

  std::unique_ptr<Transport> transport_;
  const bool echo_;
  std::string address_;
  std::atomic<bool> stop_{false};
  std::thread engine_;
};

class Dialer {
 public:
  Dialer(const std::string& kind, const std::string& address)
      : transport_(Make(kind)) {
    auto id = transport_->Connect(address);
    if (!id.ok()) Die(id.status());
    id_ = *id;
    while (!connected_) Poll();
  }
  Message Allocate(size_t size) { return transport_->Allocate(size); }
  void Send(Message message) { transport_->Send(id_, std::move(message), 0); }
  // The number of answers that came; the last one's memory is kept in `last`.
  int Poll(Message* last = nullptr) {
    int answers = 0;
    events_.clear();
    transport_->Poll(absl::Seconds(1), &events_);
    for (Event& event : events_) {
      if (event.kind == Event::Kind::kConnected) connected_ = true;
      if (event.kind == Event::Kind::kPeerDown) Die(event.status);
      if (event.kind != Event::Kind::kReceived) continue;
      ++answers;
      if (last != nullptr) {
        *last = std::move(event.message);
      } else {
        transport_->Release(std::move(event.message));
      }
    }
    return answers;
  }

 private:
  std::unique_ptr<Transport> transport_;
  ConnectionId id_;
  bool connected_ = false;
  std::vector<Event> events_;
};

void PingPong(benchmark::State& state, const std::string& kind) {
  Responder responder(kind, /*echo=*/true);
  Dialer dialer(kind, responder.address());
  Message message = dialer.Allocate(static_cast<size_t>(state.range(0)));
  for (auto unused : state) {
    dialer.Send(std::move(message));
    while (dialer.Poll(&message) == 0) {
    }
  }
}

// One way, sixteen messages under way, an empty answer to each.
void Bandwidth(benchmark::State& state, const std::string& kind) {
  constexpr int kWindow = 16;
  Responder responder(kind, /*echo=*/false);
  Dialer dialer(kind, responder.address());
  const auto bytes = static_cast<size_t>(state.range(0));
  int free = kWindow;
  for (auto unused : state) {
    while (free == 0) free += dialer.Poll();
    --free;
    dialer.Send(dialer.Allocate(bytes));
  }
  while (free < kWindow) free += dialer.Poll();
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

void Register(const char* kind) {
  for (const auto& [name, run] :
       {std::pair{"PingPong", &PingPong}, std::pair{"Bandwidth", &Bandwidth}}) {
    benchmark::RegisterBenchmark(
        (std::string(name) + "/" + kind).c_str(),
        [run = run, kind = std::string(kind)](benchmark::State& state) {
          run(state, kind);
        })
        ->Arg(8)
        ->Arg(4 << 10)
        ->Arg(64 << 10)
        ->Arg(256 << 10)
        ->Arg(1 << 20)
        ->UseRealTime()
        ->Unit(benchmark::kMicrosecond);
  }
}

}  // namespace
}  // namespace trunkline::transport

int main(int argc, char** argv) {
  trunkline::transport::Register("inprocess");
  trunkline::transport::Register("ucx");
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
