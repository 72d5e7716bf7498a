#pragma once

// What the core asks of a step, and what the edge reports back.

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/ids.h"
#include "common/thread_pool.h"
#include "trunk_worker/generation_request.h"
#include "trunk_worker/layer_runner.h"
#include "trunk_worker/sampler.h"

namespace trunkline::trunk {

struct StepRun {
  RequestId request;
  RowRun rows;
  // Where the run's last row makes a token.
  bool sample = false;
  SampleSpec spec;
  // Where prompt log-probabilities are wanted: the token that follows each row
  // of the run, as far as the prompt goes.
  std::span<const int32_t> following;
  const LogitSink* on_logits = nullptr;  // null: nobody looks
};

// Pointers and spans stay valid until the step's result is reported.
struct StepPlan {
  StepId step;
  std::vector<StepRun> runs;
  int64_t rows = 0;
};

struct RunResult {
  absl::Status status;  // of this request alone
  SampledToken token;   // when the run asked for one
  std::vector<TokenLogprobs> prompt_logprobs;
  RunRouteCounts routes;
};

struct StepResult {
  // False: no state was touched, so the same rows may be planned again.
  bool started = true;
  absl::Status status;  // an error: no run made anything
  PlacementVersion version;
  std::vector<RunResult> runs;  // parallel to the plan's, when OK
  // SampleStep's own: of each row that it drew from. Kept, so that a result
  // that is used again needs no memory.
  std::vector<absl::Status> row_statuses;
};

// Draws the tokens of a step from its logits, one task per row. `scratch` grows
// to one per thread. `result` gets the runs only.
void SampleStep(const StepPlan& plan, const StepLogits& logits,
                ThreadPool& pool, std::vector<SamplerScratch>* scratch,
                StepResult* result);

}  // namespace trunkline::trunk
