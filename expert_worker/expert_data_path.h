#pragma once

// What the engine thread of an expert worker does, without the thread: polls
// the transport, asks the core, runs batches, sends answers. Owns the frames
// that wait and the shards being served; never waits but in the transport's
// Poll. The engine (expert_engine.h) drives it with a thread and a real clock,
// the simulator with a simulated clock and transport.
//
// Not thread-safe: one thread.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "expert_worker/cost_estimator.h"
#include "expert_worker/expert_metrics.h"
#include "expert_worker/expert_runner.h"
#include "expert_worker/expert_store.h"
#include "expert_worker/expert_worker.h"
#include "expert_worker/shard_server.h"
#include "transport/transport.h"

namespace trunkline::expert {

class ExpertDataPath {
 public:
  struct Options {
    std::vector<MoeLayer> layers;  // ascending
    kernels::Activation activation = kernels::Activation::kF32;
    AnswerForm answer = AnswerForm::kGatedF32;
    ExpertWorker::Limits limits;
    // Of experts that are loaded, for peers that take their weights from here;
    // null: they are refused.
    std::function<std::optional<ExpertDigest>(ExpertKey)> digest_of;
    // Weights on their way to peers; more are refused as busy.
    size_t shard_bytes_under_way_max = size_t{64} << 20;
  };

  // transport (which listens already or will), metrics, clock and the context's
  // pool outlive it.
  ExpertDataPath(const Options& options, const kernels::KernelContext& context,
                 transport::Transport* transport, ExpertMetrics* metrics,
                 const Clock* clock);

  void SetIdentity(uint64_t cluster_id, WorkerId worker) {
    core_.SetIdentity(cluster_id, worker);
    shard_server_.SetCluster(cluster_id);
  }
  // From now on frames of the version are computed.
  void Serve(PlacementVersion version, std::shared_ptr<const Shard> shard);
  void Retire(PlacementVersion version);
  void Drain() { core_.Drain(); }

  // Takes what the transport has, waiting up to max_wait for it when no frame
  // waits here; then runs at most one batch.
  void Turn(absl::Duration max_wait) {
    Poll(max_wait);
    Work();
  }
  // The two halves of a turn. Who is told of a change by another thread looks
  // between them: a frame that was taken now may have been sent because of it.
  void Poll(absl::Duration max_wait);
  void Work();

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
  void OnShardRequest(transport::Event event);
  std::optional<ShardServer::Held> FindLoaded(ExpertKey key) const;
  void Send(PeerKey peer, transport::Message message);
  void LetGo(FrameKey frame);
  void LogRefusal(const Refusal& refusal);

  transport::Transport* const transport_;
  ExpertMetrics* const metrics_;
  const Clock& clock_;

  const std::function<std::optional<ExpertDigest>(ExpertKey)> digest_of_;
  ExpertWorker core_;
  ShardServer shard_server_;
  ExpertRunner runner_;
  CostEstimator costs_;
  std::map<PlacementVersion, std::shared_ptr<const Shard>> shards_;
  absl::flat_hash_map<FrameKey, transport::Message> frames_;
  // What of a send is under way: an answer's bytes, or those of a peer's rows.
  struct Sent {
    size_t answer_bytes = 0, shard_bytes = 0;
  };
  absl::flat_hash_map<uint64_t, Sent> sends_;  // by token
  std::vector<transport::Event> events_;
  uint64_t next_frame_ = 0;
  uint64_t next_send_ = 0;
  absl::Time last_refusal_log_ = absl::InfinitePast();
  uint64_t refusals_not_logged_ = 0;
};

}  // namespace trunkline::expert
