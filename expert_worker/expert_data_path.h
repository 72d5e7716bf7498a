#pragma once

// What the engine thread of an expert worker does, without the thread: polls
// the transport, asks the core, runs batches, sends answers. Owns the frames
// that wait and the shards being served; never waits but in the transport's
// Poll. The engine (expert_engine.h) drives it with a thread and a real clock,
// the simulator with a simulated clock and transport.
//
// Not thread-safe: one thread.

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "expert_worker/cost_estimator.h"
#include "expert_worker/expert_metrics.h"
#include "expert_worker/expert_runner.h"
#include "expert_worker/expert_store.h"
#include "expert_worker/expert_worker.h"
#include "transport/transport.h"

namespace trunkline::expert {

class ExpertDataPath {
 public:
  struct Options {
    std::vector<MoeLayer> layers;  // ascending
    kernels::Activation activation = kernels::Activation::kF32;
    AnswerForm answer = AnswerForm::kGatedF32;
    ExpertWorker::Limits limits;
  };

  // transport (which listens already or will), metrics, clock and the context's
  // pool outlive it.
  ExpertDataPath(const Options& options, const kernels::KernelContext& context,
                 transport::Transport* transport, ExpertMetrics* metrics,
                 const Clock* clock);

  void SetIdentity(uint64_t cluster_id, WorkerId worker) {
    core_.SetIdentity(cluster_id, worker);
  }
  // From now on frames of the version are computed.
  void Serve(PlacementVersion version, std::shared_ptr<const Shard> shard);
  void Retire(PlacementVersion version);
  void Drain() { core_.Drain(); }

  // Takes what the transport has, waiting up to max_wait for it when no frame
  // waits here; then runs at most one batch.
  void Turn(absl::Duration max_wait);

  // No frame waits to be computed.
  bool idle() const { return core_.idle(); }
  // Nor does an answer wait to be handed on.
  bool quiet() const { return core_.idle() && sends_.empty(); }
  const ExpertWorker& core() const { return core_; }
  // What the batches cost so far.
  const CostEstimator& costs() const { return costs_; }

 private:
  void Handle(transport::Event event);
  void OnReceived(transport::Event event);
  void RunBatch(const Batch& batch);
  void SendRefusal(const Refusal& refusal);
  void Send(PeerKey peer, transport::Message message);
  void LetGo(FrameKey frame);
  void LogRefusal(const Refusal& refusal);

  transport::Transport* const transport_;
  ExpertMetrics* const metrics_;
  const Clock& clock_;

  ExpertWorker core_;
  ExpertRunner runner_;
  CostEstimator costs_;
  std::map<PlacementVersion, std::shared_ptr<const Shard>> shards_;
  absl::flat_hash_map<FrameKey, transport::Message> frames_;
  absl::flat_hash_map<uint64_t, size_t> sends_;  // token -> bytes under way
  std::vector<transport::Event> events_;
  uint64_t next_frame_ = 0;
  uint64_t next_send_ = 0;
  absl::Time last_refusal_log_ = absl::InfinitePast();
  uint64_t refusals_not_logged_ = 0;
};

}  // namespace trunkline::expert
