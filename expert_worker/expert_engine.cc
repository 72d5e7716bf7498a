#include "expert_worker/expert_engine.h"

#include <utility>

namespace trunkline::expert {

namespace {

// How long the engine sleeps when nothing happens. Everything that matters
// wakes it; this only bounds how stale the published counters are.
constexpr absl::Duration kIdleWait = absl::Seconds(1);

}  // namespace

ExpertEngine::ExpertEngine(const Options& options,
                           std::unique_ptr<transport::Transport> transport,
                           ExpertMetrics* metrics)
    : transport_(std::move(transport)),
      pool_(options.threads),
      path_(options, kernels::KernelContext{&pool_}, transport_.get(), metrics,
            &Clock::Monotonic()),
      thread_([this] { Loop(); }) {}

ExpertEngine::~ExpertEngine() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  transport_->Wake();
  thread_.join();
}

void ExpertEngine::SetIdentity(uint64_t cluster_id, WorkerId worker) {
  Post([this, cluster_id, worker] { path_.SetIdentity(cluster_id, worker); });
}

void ExpertEngine::Serve(PlacementVersion version,
                         std::shared_ptr<const Shard> shard,
                         std::function<void()> serving) {
  Post([this, version, shard = std::move(shard),
        serving = std::move(serving)]() mutable {
    path_.Serve(version, std::move(shard));
    if (serving) serving();
  });
}

void ExpertEngine::Retire(PlacementVersion version) {
  Post([this, version] { path_.Retire(version); });
}

void ExpertEngine::Drain() {
  Post([this] { path_.Drain(); });
}

bool ExpertEngine::WaitIdle(absl::Duration patience) {
  std::unique_lock<std::mutex> lock(mutex_);
  return state_changed_.wait_for(
      lock, absl::ToChronoMicroseconds(patience),
      [this] { return quiet_ && commands_.empty(); });
}

WorkerCounters ExpertEngine::counters() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return counters_;
}

control::ExpertCosts ExpertEngine::costs() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return costs_.costs();
}

void ExpertEngine::Post(std::function<void()> command) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    commands_.push_back(std::move(command));
    quiet_ = false;
  }
  transport_->Wake();
}

void ExpertEngine::Loop() {
  pool_.AdoptCaller();
  while (true) {
    RunCommands();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (stop_) return;
    }
    path_.Poll(kIdleWait);
    // What was posted before a frame was sent is done before it is looked at.
    RunCommands();
    path_.Work();
    PublishState();
  }
}

void ExpertEngine::RunCommands() {
  std::vector<std::function<void()>> commands;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    commands.swap(commands_);
  }
  for (const std::function<void()>& command : commands) command();
  if (!commands.empty()) PublishState();
}

void ExpertEngine::PublishState() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    counters_ = path_.core().counters();
    costs_ = path_.costs();
    quiet_ = path_.quiet() && commands_.empty();
  }
  state_changed_.notify_all();
}

}  // namespace trunkline::expert
