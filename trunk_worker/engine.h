#pragma once

// The engine thread: owns the core, the layer walk and the way to the experts,
// runs step after step, and sleeps when there is nothing to compute.
//
// Other threads hand it events through a bounded queue; everything it makes
// comes back through the request's sink, on the engine's thread. Start,
// CancelRequest, Generate, Shutdown and Stats may be called from any thread.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/thread_pool.h"
#include "model/checkpoint.h"
#include "model/tokenizer.h"
#include "routing/admission.h"
#include "routing/route_validator.h"
#include "trunk_worker/expert_exchange.h"
#include "trunk_worker/generation_request.h"
#include "trunk_worker/layer_observer.h"
#include "trunk_worker/layer_runner.h"
#include "trunk_worker/sequence_state.h"
#include "trunk_worker/trunk_weights.h"
#include "trunk_worker/trunk_worker.h"

namespace trunkline::trunk {

// What a step cost, for metrics. Called on the engine's thread.
struct StepStats {
  absl::Duration time;
  int64_t rows = 0;
  int64_t decode_rows = 0;
  RouteCounts routes;
  std::span<const LayerRouteCounts> layer_routes;  // for the call only
  PlacementVersion version;
  bool failed = false;
  // Why, when a routing contract was broken.
  std::optional<routing::RouteContract> broken_contract;
};

struct EngineStats {
  size_t running = 0;
  size_t waiting = 0;
  int64_t sequences_max = 0;
  int64_t state_bytes_total = 0;
  int64_t state_bytes_used = 0;
  PlacementVersion version;  // of the last step
  absl::Status readiness;
};

// A whole completion, for callers that do not stream.
struct Completion {
  std::vector<int32_t> token_ids;
  std::string text;
  std::vector<TokenLogprobs> logprobs, prompt_logprobs;
  FinishReason reason = FinishReason::kNone;
  std::string stop;
  Usage usage;
};

class Engine {
 public:
  struct Options {
    SequencePool::Options state{};
    BatchLimits batch{};
    // Dropless, or a fixed capacity that CheckServingAdmission takes.
    routing::AdmissionPolicy admission{};
    size_t waiting_max = 256;
    // Submissions and cancellations on their way to the engine thread.
    size_t events_max = 4096;
    absl::Duration unready_patience = absl::Seconds(5);
    // How often an idle engine looks whether the experts are reachable: while
    // they are (each look wakes a cpu), and while they are not (connections
    // come up).
    absl::Duration idle_poll = absl::Milliseconds(100);
    absl::Duration unready_poll = absl::Milliseconds(20);
    std::function<void(const StepStats&)> on_step;
    // So many sequences start over because a step failed.
    std::function<void(uint64_t)> on_recompute;
    // How many requests are held because the experts are out of reach; called
    // when that changes.
    std::function<void(size_t)> on_hold;
    std::vector<StepObserver*> observers;  // outlive the engine
    // Called when readiness changes, and once at the start.
    std::function<void(const absl::Status&)> on_readiness;
    // Sees every row of logits that a step makes; for tests and evaluation.
    // With prompt_logprobs a request makes one for each prompt token.
    std::function<void(RequestId, int64_t position, std::span<const float>)>
        on_logits;
    // Sees, and may break, a layer's routes before they are checked; for tests.
    LayerRunner::RouteFunction on_routes;
  };

  // checkpoint, weights, tokenizer (may be null), pool: outlive the engine.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(
      const model::Checkpoint* checkpoint, const TrunkWeights* weights,
      const model::Tokenizer* tokenizer,
      std::unique_ptr<ExpertExchange> experts, ThreadPool* pool,
      Options options);
  // Ends what still lives with UNAVAILABLE and joins the thread.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Every request gets exactly one finished output through its sink, also one
  // that is refused. The request's id is assigned here and returned.
  // RESOURCE_EXHAUSTED (the sink is never called) when the event queue is full.
  absl::StatusOr<RequestId> Start(GenerationRequest request, OutputSink sink);
  void CancelRequest(RequestId id, absl::Status why);
  // Starts and waits.
  absl::StatusOr<Completion> Generate(GenerationRequest request);

  // Refuses new requests with `why`, or takes them again; those that live go
  // on.
  void SetDraining(bool draining, absl::Status why);
  // New requests are refused, and none runs or waits.
  bool AtRest() const;
  // No new requests; waits until those that live have ended, at most until
  // `patience` has passed, then ends the rest with UNAVAILABLE.
  void Shutdown(absl::Duration patience);

  EngineStats Stats() const;
  absl::Time Now() const { return clock_.Now(); }

 private:
  Engine(const model::Checkpoint* checkpoint, const TrunkWeights* weights,
         const model::Tokenizer* tokenizer,
         std::unique_ptr<ExpertExchange> experts, ThreadPool* pool,
         std::unique_ptr<SequencePool> states, Options options);

  struct Mail {
    Event event;
    OutputSink sink;  // with a Submit
  };

  void Loop();
  void TakeMail();
  void LookAtExperts();
  void ReportHold();
  void ShowLogits(const StepPlan& plan, PlacementVersion version);
  void RunPlannedStep();
  void Execute(const StepPlan& plan);  // into result_
  void ReportStep(const StepPlan& plan, const StepResult& result,
                  absl::Duration time);
  void Deliver();
  void PublishStats();

  const Options options_;
  const Clock& clock_;
  ThreadPool* const pool_;
  const std::unique_ptr<ExpertExchange> experts_;

  // The engine thread's own.
  const std::unique_ptr<SequencePool> states_;
  LayerRunner runner_;
  TrunkWorker core_;
  StepLogits logits_;
  std::vector<RowRun> row_runs_;
  std::vector<SamplerScratch> scratch_;
  StepResult result_;  // of the last step; kept for its memory
  absl::flat_hash_map<RequestId, OutputSink> sinks_;
  absl::Status readiness_ = absl::UnknownError("not looked yet");
  size_t held_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable mail_came_;    // to the engine thread
  std::condition_variable became_idle_;  // to Shutdown
  std::deque<Mail> mail_;                // guarded by mutex_, as is the rest
  uint64_t next_request_ = 1;
  bool stop_ = false;
  bool idle_ = true;
  bool draining_ = false;  // once mail_ is empty the core knows
  EngineStats stats_;

  std::thread thread_;  // last: starts when everything else stands
};

}  // namespace trunkline::trunk
