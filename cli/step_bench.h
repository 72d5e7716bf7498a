#pragma once

// Steps of a model against the machine's limits. Each repeat measures the limit
// and then the steps, so that both saw the same machine; a case's ratio is the
// median of its repeats' own ratios.

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/aligned_buffer.h"
#include "common/thread_pool.h"
#include "kernels/numerics.h"
#include "model/census.h"
#include "model/checkpoint.h"
#include "trunk_worker/expert_exchange.h"
#include "trunk_worker/layer_runner.h"
#include "trunk_worker/sequence_state.h"
#include "trunk_worker/step_phase.h"
#include "trunk_worker/step_plan.h"
#include "trunk_worker/trunk_weights.h"

namespace trunkline::cli {

struct StepCase {
  bool prefill = false;
  int64_t rows = 1;          // decode: streams; prefill: tokens of one prompt
  int64_t context = 0;       // decode: positions before
  std::string Name() const;  // "decode/8/2048", "prefill/512"
};

// Seconds of one step (decode) or one prompt (prefill), per phase.
using PhaseSeconds = std::array<double, trunk::kStepPhases>;

struct StepFigures {
  StepCase what;
  double seconds = 0;  // of a step or prompt: the median over the repeats
  double tokens_per_second = 0;
  // What it has to do at least: bytes read, each once (decode), or operations
  // of the matrix products (prefill).
  double work = 0;
  double rate = 0;   // work / seconds, median
  double limit = 0;  // bytes or operations per second, median
  double ratio = 0, ratio_low = 0, ratio_high = 0;
  double experts = 0;  // distinct ones per step, over all layers
  PhaseSeconds phases{};
};

class StepBench {
 public:
  struct Options {
    int64_t rows_per_step = 512;
    int repeats = 5;
    double seconds_per_repeat = 0.3;
    std::vector<StepCase> cases;  // size the state
  };
  // All outlive the bench.
  struct Parts {
    const model::Checkpoint* checkpoint = nullptr;
    const trunk::TrunkWeights* weights = nullptr;
    trunk::ExpertExchange* experts = nullptr;
    ThreadPool* pool = nullptr;
    // Of weights and experts: prefill is compared with its peak.
    kernels::Numerics numerics = kernels::Numerics::kPortable;
  };
  // RESOURCE_EXHAUSTED when the state of the largest case exceeds half of the
  // machine's memory.
  static absl::StatusOr<std::unique_ptr<StepBench>> Create(const Parts& parts,
                                                           Options options);
  ~StepBench();

  absl::StatusOr<StepFigures> Measure(const StepCase& what);

  double ReadLimit(ThreadPool* pool);  // bytes per second
  // Bytes per second at which all threads write to memory that the process has
  // just been given: what loading can not go beyond, however fast it packs.
  double fresh_memory_rate() const { return fresh_memory_rate_; }

 private:
  class PhaseClock;
  class ExpertCounter;
  struct Sample;
  struct Stream;

  StepBench(const Parts& parts, Options options,
            std::unique_ptr<trunk::SequencePool> states);
  std::vector<Stream> Admit(const StepCase& what);
  absl::Status Step(std::vector<Stream>* streams, int64_t rows);
  absl::StatusOr<Sample> SampleDecode(const StepCase& what);
  absl::StatusOr<Sample> SamplePrefill(const StepCase& what);
  double ArithmeticPeak() const;  // operations per second of the class
  double Work(const StepCase& what, double experts) const;

  const Parts parts_;
  const Options options_;
  const model::Census census_;
  const std::unique_ptr<trunk::SequencePool> states_;
  trunk::LayerRunner runner_;
  const std::unique_ptr<PhaseClock> clock_;
  const std::unique_ptr<ExpertCounter> counter_;
  AlignedBuffer memory_;  // what the read limit reads
  double fresh_memory_rate_ = 0;
  trunk::StepPlan plan_;
  std::vector<trunk::RowRun> row_runs_;
  trunk::StepLogits logits_;
  std::vector<trunk::SamplerScratch> scratch_;
  trunk::StepResult result_;
  trunk::SamplingParams greedy_;
  uint64_t next_step_ = 1;
};

}  // namespace trunkline::cli
