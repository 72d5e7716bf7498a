#include "sim/sim_peer_loader.h"

#include <utility>

namespace trunkline::sim {

namespace {

// A stopped process looks again so often whether it goes on.
constexpr absl::Duration kPausedLook = absl::Milliseconds(5);

expert::PeerLoader::Options LoaderOptions(const Clock* clock) {
  expert::PeerLoader::Options options;
  options.peer_patience = absl::Seconds(1);
  options.expert_patience = absl::Seconds(4);
  options.clock = clock;
  return options;
}

}  // namespace

// SimTransport never waits; this one does, by giving the world its turn.
class SimPeerLoader::Wire final : public transport::Transport {
 public:
  explicit Wire(SimPeerLoader* loader)
      : loader_(loader),
        inner_(loader->fabric_, loader->world_, loader->place_,
               [loader, alive = loader->alive_] {
                 loader->world_->After(absl::ZeroDuration(),
                                       [loader, alive, wait = loader->wait_] {
                                         if (*alive) loader->GoOn(wait);
                                       });
               }) {
    loader_->wire_ = &inner_;
  }
  ~Wire() override { loader_->wire_ = nullptr; }

  absl::StatusOr<std::string> Listen(const std::string& address) override {
    return inner_.Listen(address);
  }
  absl::StatusOr<transport::ConnectionId> Connect(
      const std::string& address) override {
    return inner_.Connect(address);
  }
  void Disconnect(transport::ConnectionId connection) override {
    inner_.Disconnect(connection);
  }
  void Send(transport::ConnectionId connection, transport::Message message,
            uint64_t token) override {
    inner_.Send(connection, std::move(message), token);
  }
  void Poll(absl::Duration max_wait,
            std::vector<transport::Event>* events) override {
    if (!inner_.has_events() && max_wait > absl::ZeroDuration())
      loader_->Wait(max_wait);
    inner_.Poll(absl::ZeroDuration(), events);
  }
  void Wake() override { inner_.Wake(); }
  transport::Message Allocate(size_t size) override {
    return inner_.Allocate(size);
  }
  void Release(transport::Message message) override {
    inner_.Release(std::move(message));
  }
  std::string Name() const override { return inner_.Name(); }

 private:
  SimPeerLoader* const loader_;
  SimTransport inner_;
};

SimPeerLoader::SimPeerLoader(World* world, Network* network, Fabric* fabric,
                             Place place, const Clock* clock)
    : world_(world),
      network_(network),
      fabric_(fabric),
      place_(place),
      loader_(
          [this]() -> absl::StatusOr<std::unique_ptr<transport::Transport>> {
            return std::make_unique<Wire>(this);
          },
          &peers_, LoaderOptions(clock)) {}

SimPeerLoader::~SimPeerLoader() {
  *alive_ = false;
  given_up_ = true;
  while (fiber_ != nullptr && !fiber_->finished()) fiber_->Resume();
}

int64_t SimPeerLoader::messages_held() const {
  return wire_ == nullptr ? 0 : wire_->messages_held();
}

void SimPeerLoader::Fetch(const expert::ExpertRequest& request, Done done) {
  jobs_.push_back({request, std::move(done)});
  if (jobs_.size() > 1) return;
  world_->After(absl::ZeroDuration(), [this, alive = alive_] {
    if (*alive) Begin();
  });
}

void SimPeerLoader::Begin() {
  fiber_ = std::make_unique<Fiber>([this] {
    absl::StatusOr<expert::FetchedExpert> fetched =
        loader_.Fetch(jobs_.front().request, [this] { return given_up_; });
    if (given_up_) return;
    // Told by the world, when this fiber has ended.
    world_->After(
        absl::ZeroDuration(),
        [this, alive = alive_,
         fetched = std::make_shared<absl::StatusOr<expert::FetchedExpert>>(
             std::move(fetched))] {
          if (!*alive) return;
          const Done done = std::move(jobs_.front().done);
          jobs_.pop_front();
          if (!jobs_.empty()) Begin();
          done(std::move(*fetched));
        });
  });
  fiber_->Resume();
}

void SimPeerLoader::Wait(absl::Duration most) {
  if (given_up_) return;
  const uint64_t wait = ++wait_;
  waiting_ = true;
  world_->After(most, [this, alive = alive_, wait] {
    if (*alive) GoOn(wait);
  });
  fiber_->Yield();
}

void SimPeerLoader::GoOn(uint64_t wait) {
  if (!waiting_ || wait != wait_) return;
  if (network_->paused(place_)) {
    world_->After(kPausedLook, [this, alive = alive_, wait] {
      if (*alive) GoOn(wait);
    });
    return;
  }
  waiting_ = false;
  fiber_->Resume();
}

}  // namespace trunkline::sim
