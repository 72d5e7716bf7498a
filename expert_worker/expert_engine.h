#pragma once

// The edge around the data path: one thread that takes turns (polls, asks the
// core, runs batches, sends answers) and does what other threads ask for
// between two batches. Owns the transport. Sleeps in it when nothing waits.
//
// Thread safety: the public methods from any thread. What they ask for is done
// by the engine thread, in the order asked, between two batches.

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "common/thread_pool.h"
#include "expert_worker/expert_data_path.h"
#include "expert_worker/expert_metrics.h"
#include "expert_worker/expert_store.h"
#include "transport/transport.h"

namespace trunkline::expert {

// Whoever computes frames, as the placement follower sees it. Every call
// returns at once; what it asks for happens later, in the order asked.
class VersionServer {
 public:
  virtual ~VersionServer() = default;
  virtual void SetIdentity(uint64_t cluster_id, WorkerId worker) = 0;
  // `serving` is called, never from inside this call, once frames of the
  // version are computed.
  virtual void Serve(PlacementVersion version,
                     std::shared_ptr<const Shard> shard,
                     std::function<void()> serving) = 0;
  virtual void Retire(PlacementVersion version) = 0;
};

class ExpertEngine final : public VersionServer {
 public:
  struct Options : ExpertDataPath::Options {
    ThreadPool::Options threads;  // the engine thread included
  };

  // Starts the thread. `transport` listens already or will; metrics outlive the
  // engine.
  ExpertEngine(const Options& options,
               std::unique_ptr<transport::Transport> transport,
               ExpertMetrics* metrics);
  // Stops after the batch under way; connections drop, frames that wait go
  // unanswered. Drain and WaitIdle first for an orderly end.
  ~ExpertEngine() override;
  ExpertEngine(const ExpertEngine&) = delete;
  ExpertEngine& operator=(const ExpertEngine&) = delete;

  void SetIdentity(uint64_t cluster_id, WorkerId worker) override;
  void Serve(PlacementVersion version, std::shared_ptr<const Shard> shard,
             std::function<void()> serving) override;
  void Retire(PlacementVersion version) override;
  void Drain();
  // True when nothing asked for or received waits and every answer was handed
  // on; false when that did not come within `patience`.
  bool WaitIdle(absl::Duration patience);

  // As of the last time the engine looked.
  WorkerCounters counters() const;
  // What its work costs; unknown before some batches have run.
  control::ExpertCosts costs() const;

 private:
  void Loop();
  void RunCommands();
  void Post(std::function<void()> command);
  void PublishState();

  const std::unique_ptr<transport::Transport> transport_;

  // The engine thread's own.
  ThreadPool pool_;
  ExpertDataPath path_;

  mutable std::mutex mutex_;
  std::condition_variable state_changed_;
  std::vector<std::function<void()>> commands_;  // by mutex_
  bool stop_ = false;                            // by mutex_
  bool quiet_ = true;                            // by mutex_
  WorkerCounters counters_;                      // by mutex_, a copy
  CostEstimator costs_;                          // by mutex_, a copy

  std::thread thread_;  // last: starts when all else stands
};

}  // namespace trunkline::expert
