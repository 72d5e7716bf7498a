#pragma once

// The edge around the core: one thread that polls the transport, asks the core,
// runs batches and sends answers. Owns the transport, the frames that wait and
// the shards being served. Sleeps in the transport when nothing waits.
//
// Thread safety: the public methods from any thread. What they ask for is done
// by the engine thread, in the order asked, between two batches.

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/thread_pool.h"
#include "expert_worker/expert_metrics.h"
#include "expert_worker/expert_runner.h"
#include "expert_worker/expert_store.h"
#include "expert_worker/expert_worker.h"
#include "transport/transport.h"

namespace trunkline::expert {

class ExpertEngine {
 public:
  struct Options {
    std::vector<MoeLayer> layers;  // ascending
    kernels::Activation activation = kernels::Activation::kF32;
    AnswerForm answer = AnswerForm::kGatedF32;
    ExpertWorker::Limits limits;
    ThreadPool::Options threads;  // the engine thread included
  };

  // Starts the thread. `transport` listens already or will; metrics outlive the
  // engine.
  ExpertEngine(const Options& options,
               std::unique_ptr<transport::Transport> transport,
               ExpertMetrics* metrics);
  // Stops after the batch under way; connections drop, frames that wait go
  // unanswered. Drain and WaitIdle first for an orderly end.
  ~ExpertEngine();
  ExpertEngine(const ExpertEngine&) = delete;
  ExpertEngine& operator=(const ExpertEngine&) = delete;

  void SetIdentity(uint64_t cluster_id, WorkerId worker);
  // `serving` is called on the engine thread once frames of the version are
  // computed.
  void Serve(PlacementVersion version, std::shared_ptr<const Shard> shard,
             std::function<void()> serving);
  void Retire(PlacementVersion version);
  void Drain();
  // True when nothing asked for or received waits and every answer was handed
  // on; false when that did not come within `patience`.
  bool WaitIdle(absl::Duration patience);

  // As of the last time the engine looked.
  WorkerCounters counters() const;

 private:
  void Loop();
  void RunCommands();
  void Post(std::function<void()> command);
  void Handle(transport::Event event);
  void OnReceived(transport::Event event);
  void RunBatch(const Batch& batch);
  void SendRefusal(const Refusal& refusal);
  void Send(PeerKey peer, transport::Message message);
  void LetGo(FrameKey frame);
  void LogRefusal(const Refusal& refusal);
  void PublishState();

  const std::unique_ptr<transport::Transport> transport_;
  ExpertMetrics* const metrics_;
  const Clock& clock_;

  // The engine thread's own.
  ThreadPool pool_;
  ExpertWorker core_;
  ExpertRunner runner_;
  std::map<PlacementVersion, std::shared_ptr<const Shard>> shards_;
  absl::flat_hash_map<FrameKey, transport::Message> frames_;
  absl::flat_hash_map<uint64_t, size_t> sends_;  // token -> bytes under way
  uint64_t next_frame_ = 0;
  uint64_t next_send_ = 0;
  absl::Time last_refusal_log_ = absl::InfinitePast();
  uint64_t refusals_not_logged_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable state_changed_;
  std::vector<std::function<void()>> commands_;  // by mutex_
  bool stop_ = false;                            // by mutex_
  bool quiet_ = true;                            // by mutex_
  WorkerCounters counters_;                      // by mutex_, a copy

  std::thread thread_;  // last: starts when all else stands
};

}  // namespace trunkline::expert
