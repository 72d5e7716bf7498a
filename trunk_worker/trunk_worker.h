#pragma once

// The trunk worker's core: which requests live, what the next step computes,
// what its result means. A state machine over values: the edge (engine.h) gives
// it events, results and the time, runs the steps it plans, and delivers the
// outputs it makes. No thread, no clock, no socket, no log.
//
// A request is refused, waits, or is admitted with room for its longest
// possible text. It ends by a stop, its length, its deadline, its cancellation
// or an error; its slot is free before the next step is planned. Sequences
// start, chunk and mix in any way without changing any sequence's tokens.
//
// A step that failed because experts were missing (UNAVAILABLE,
// DEADLINE_EXCEEDED) ends no request at once: its sequences are prefilled
// again, prompt and delivered tokens, and go on with the text that they would
// have had. One that has had no successful step for Options::unready_patience
// ends.

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "model/tokenizer.h"
#include "trunk_worker/batch_planner.h"
#include "trunk_worker/generation_request.h"
#include "trunk_worker/sequence_state.h"
#include "trunk_worker/step_plan.h"

namespace trunkline::trunk {

struct Submit {
  GenerationRequest request;
};
struct Cancel {
  RequestId request;
  absl::Status why;  // what the request ends with; not OK
};
// Whether steps can run. While they can not, running requests are held for
// Options::unready_patience and then end with this status; new ones wait if
// they asked to, else end with it at once.
struct Readiness {
  absl::Status status;
};
// Whether new requests are refused; those that wait or run go on.
struct Drain {
  bool on = true;
  // What the refusals say.
  absl::Status why = absl::UnavailableError("the server is shutting down");
};
using Event = std::variant<Submit, Cancel, Readiness, Drain>;

class TrunkWorker {
 public:
  struct Options {
    BatchLimits batch{};
    size_t waiting_max = 256;
    int64_t vocab_size = 0;  // ids of prompts lie below it
    absl::Duration unready_patience = absl::Seconds(5);
    // What a draining server tells those it refuses: when to ask it again.
    absl::Duration drain_retry_after = absl::Seconds(1);
  };

  // pool and tokenizer outlive the core. tokenizer may be null: then outputs
  // have no text, and requests with stop strings are refused.
  TrunkWorker(const Options& options, SequencePool* pool,
              const model::Tokenizer* tokenizer);
  ~TrunkWorker();

  void Step(Event event, absl::Time now);
  void Tick(absl::Time now);

  // Admits what fits and plans the next step; no runs when there is nothing to
  // compute. A plan with runs must be answered by OnStepResult before the next.
  const StepPlan& PlanStep(absl::Time now);
  void OnStepResult(const StepResult& result, absl::Time now);

  // What was made since the last call, in order.
  std::vector<Output> TakeOutputs();

  // When Tick has something to do; InfiniteFuture: not before the next event.
  absl::Time NextDeadline() const;
  bool idle() const { return running_.empty() && waiting_.empty(); }
  size_t running() const { return running_.size(); }
  size_t waiting() const { return waiting_.size(); }
  // When PlanStep would plan something; InfiniteFuture: not before an event.
  // After a failed step that is a little later.
  absl::Time NextStep() const;
  // Sequences that a failed step made start over, since the start.
  uint64_t recomputed() const { return recomputed_; }

 private:
  struct Sequence;

  void OnSubmit(GenerationRequest request, absl::Time now);
  void OnCancel(const Cancel& cancel, absl::Time now);
  void OnReadiness(const absl::Status& status, absl::Time now);
  absl::Status CheckRequest(const GenerationRequest& request) const;
  absl::Status CheckDelivered(const GenerationRequest& request) const;
  absl::Status CheckCapacity(const GenerationRequest& request) const;
  void Admit(std::unique_ptr<Sequence> sequence, absl::Time now);
  void AdmitWaiting(absl::Time now);
  void PlanRun(const BatchRun& run);

  void OnFailedStep(Sequence& sequence, const absl::Status& status,
                    absl::Time now);
  void TakeRunResult(const StepRun& run, const RunResult& result,
                     PlacementVersion version, absl::Time now);
  void TakeToken(Sequence& sequence, const RunResult& result,
                 PlacementVersion version, absl::Time now);
  static Usage UsageOf(const Sequence& sequence, absl::Time now);
  // Makes the last output. The slot is freed now, or when the step that has it
  // in its hands reports.
  void Finish(Sequence& sequence, Output output, absl::Time now);
  void FinishWith(Sequence& sequence, absl::Status status, absl::Time now);
  void DropFinished();
  Sequence* Find(RequestId id);

  const Options options_;
  SequencePool* const pool_;
  const model::Tokenizer* const tokenizer_;

  // All in order of arrival. A request is in exactly one of them.
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::vector<std::unique_ptr<Sequence>> running_;

  StepPlan plan_;
  bool step_under_way_ = false;
  uint64_t next_step_ = 1;
  uint64_t rotation_ = 0;
  std::vector<BatchRun> batch_;
  std::vector<int64_t> context_left_;
  absl::Duration retry_delay_;
  absl::Time retry_at_ = absl::InfinitePast();
  uint64_t recomputed_ = 0;

  absl::Status readiness_;
  absl::Time unready_since_ = absl::InfiniteFuture();
  std::optional<absl::Status> draining_;  // what refusals say
  std::vector<Output> outputs_;
};

}  // namespace trunkline::trunk
