#include "cli/step_bench.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/random.h"
#include "common/status_macros.h"
#include "kernels/machine_limits.h"
#include "model/census.h"

namespace trunkline::cli {
namespace {

using Clock = std::chrono::steady_clock;
using trunk::StepPhase;

// More than any cache holds, and no more than a thirtieth of a second to read.
constexpr size_t kLimitBytes = size_t{1} << 30;
// Decode steps of a repeat are at least these many, however slow.
constexpr int kStepsMin = 3;
constexpr int kStepsMax = 256;

double Seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2,
                   values.end());
  return values[values.size() / 2];
}

kernels::Activation ActivationOf(const model::Checkpoint& checkpoint) {
  return checkpoint.activation_dtype() == DType::kBF16
             ? kernels::Activation::kBf16
             : kernels::Activation::kF32;
}

int64_t TokensOf(const StepCase& what) {
  return what.prefill ? what.rows : what.context + kStepsMax + 1;
}

}  // namespace

std::string StepCase::Name() const {
  return prefill ? absl::StrCat("prefill/", rows)
                 : absl::StrCat("decode/", rows, "/", context);
}

class StepBench::PhaseClock final : public trunk::PhaseObserver {
 public:
  void Start() {
    seconds_ = {};
    phase_ = StepPhase::kRest;
    since_ = Clock::now();
  }
  void Enter(StepPhase phase) override {
    const Clock::time_point now = Clock::now();
    seconds_[static_cast<size_t>(phase_)] += Seconds(now - since_);
    phase_ = phase;
    since_ = now;
  }
  const PhaseSeconds& seconds() const { return seconds_; }

 private:
  PhaseSeconds seconds_{};
  StepPhase phase_ = StepPhase::kRest;
  Clock::time_point since_;
};

// Distinct experts per layer and step: what has to be read.
class StepBench::ExpertCounter final : public trunk::LayerObserver {
 public:
  bool Wants(LayerIndex) override { return true; }
  absl::Status OnLayer(const trunk::ObservedLayer& layer) override {
    const routing::RouteTable& table = *layer.routes;
    seen_.assign(static_cast<size_t>(table.experts), false);
    for (const ExpertId expert : table.expert_id) seen_[expert.value] = true;
    count_ += std::count(seen_.begin(), seen_.end(), true);
    return absl::OkStatus();
  }
  int64_t Take() { return std::exchange(count_, 0); }

 private:
  std::vector<bool> seen_;
  int64_t count_ = 0;
};

// One sequence and what it is fed.
struct StepBench::Stream {
  std::unique_ptr<trunk::SequenceState> state;
  RandomStream tokens;
  std::vector<int32_t> next;
};

struct StepBench::Sample {
  double seconds = 0;
  double experts = 0;
  double limit = 0;
  PhaseSeconds phases{};
};

absl::StatusOr<std::unique_ptr<StepBench>> StepBench::Create(const Parts& parts,
                                                             Options options) {
  const kernels::Activation activation = ActivationOf(*parts.checkpoint);
  trunk::StateLayout layout =
      trunk::StateLayout::For(parts.checkpoint->config(), activation);
  trunk::SequencePool::Options state;
  state.sequences_max = 1;
  state.tokens_max = 1;
  int64_t bytes = 0;
  for (const StepCase& what : options.cases) {
    const int64_t sequences = what.prefill ? 1 : what.rows;
    state.sequences_max = std::max(state.sequences_max, sequences);
    state.tokens_max = std::max(state.tokens_max, TokensOf(what));
    bytes = std::max(bytes, sequences * layout.SequenceBytes(TokensOf(what)));
  }
  state.memory_bytes = std::max(bytes, layout.SequenceBytes(state.tokens_max)) +
                       state.sequences_max * layout.slot_bytes;
  const int64_t memory =
      static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  if (state.memory_bytes > memory / 2) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "keys, values and mamba states of the largest case take ",
        state.memory_bytes, " bytes, and half of the machine's memory is ",
        memory / 2, ": ask for fewer streams or a shorter context"));
  }
  TL_ASSIGN_OR_RETURN(std::unique_ptr<trunk::SequencePool> states,
                      trunk::SequencePool::Create(std::move(layout), state));
  return std::unique_ptr<StepBench>(
      new StepBench(parts, std::move(options), std::move(states)));
}

StepBench::StepBench(const Parts& parts, Options options,
                     std::unique_ptr<trunk::SequencePool> states)
    : parts_(parts),
      options_(std::move(options)),
      census_(model::TakeCensus(*parts.checkpoint)),
      states_(std::move(states)),
      runner_(&parts.checkpoint->config(), parts.weights,
              ActivationOf(*parts.checkpoint), parts.experts,
              kernels::KernelContext{parts.pool}, options_.rows_per_step),
      clock_(std::make_unique<PhaseClock>()),
      counter_(std::make_unique<ExpertCounter>()),
      memory_(kLimitBytes) {
  runner_.set_phases(clock_.get());
  runner_.set_observers({counter_.get()});
  // Pages that were never written are all the same one.
  const Clock::time_point begin = Clock::now();
  parts.pool->ParallelFor(kLimitBytes >> 20, [&](int64_t piece, int) {
    std::memset(memory_.data() + (piece << 20), 1, 1 << 20);
  });
  fresh_memory_rate_ =
      static_cast<double>(kLimitBytes) / Seconds(Clock::now() - begin);
}

StepBench::~StepBench() = default;

double StepBench::ReadLimit(ThreadPool* pool) {
  const std::span<const std::byte> range = memory_.bytes();
  return kernels::ReadBandwidth(*pool, {&range, 1}, 1);
}

std::vector<StepBench::Stream> StepBench::Admit(const StepCase& what) {
  std::vector<Stream> streams;
  const int64_t sequences = what.prefill ? 1 : what.rows;
  for (int64_t i = 0; i < sequences; ++i) {
    streams.push_back({states_->Admit(TokensOf(what)),
                       RandomStream(static_cast<uint64_t>(i) + 1),
                       {}});
    if (what.prefill || what.context == 0) continue;
    // The positions before hold zeros: attention reads as much as it would
    // after a prompt, and its time does not depend on the values.
    streams.back().state->BeginStep(what.context);
    streams.back().state->CommitStep();
  }
  return streams;
}

// One step of `rows` rows of each stream, its tokens drawn and thrown away.
absl::Status StepBench::Step(std::vector<Stream>* streams, int64_t rows) {
  const auto vocab =
      static_cast<uint64_t>(parts_.checkpoint->config().vocab_size);
  plan_.runs.clear();
  row_runs_.clear();
  for (Stream& stream : *streams) {
    stream.next.clear();
    for (int64_t r = 0; r < rows; ++r)
      stream.next.push_back(
          static_cast<int32_t>(stream.tokens.NextBelow(vocab)));
    trunk::StepRun run;
    run.rows = {stream.state.get(), stream.next, trunk::LogitRows::kLast};
    run.sample = true;
    run.spec.params = &greedy_;
    plan_.runs.push_back(run);
    row_runs_.push_back(run.rows);
  }
  plan_.step = StepId(next_step_++);
  plan_.rows = rows * static_cast<int64_t>(streams->size());
  TL_RETURN_IF_ERROR(parts_.experts->BeginStep(plan_.step).status());
  const absl::Status status = runner_.RunStep(plan_.step, row_runs_, &logits_);
  parts_.experts->EndStep(plan_.step);
  TL_RETURN_IF_ERROR(status);
  clock_->Enter(StepPhase::kSample);
  trunk::SampleStep(plan_, logits_, *parts_.pool, &scratch_, &result_);
  clock_->Enter(StepPhase::kRest);
  for (const trunk::RunResult& run : result_.runs)
    TL_RETURN_IF_ERROR(run.status);
  return absl::OkStatus();
}

absl::StatusOr<StepBench::Sample> StepBench::SampleDecode(
    const StepCase& what) {
  std::vector<Stream> streams = Admit(what);
  TL_RETURN_IF_ERROR(Step(&streams, 1));  // warm
  Sample sample;
  sample.limit = ReadLimit(parts_.pool);
  counter_->Take();
  int steps = 0;
  clock_->Start();
  const Clock::time_point begin = Clock::now();
  double taken = 0;
  while (steps < kStepsMin ||
         (taken < options_.seconds_per_repeat && steps < kStepsMax)) {
    TL_RETURN_IF_ERROR(Step(&streams, 1));
    ++steps;
    taken = Seconds(Clock::now() - begin);
  }
  // The machine may have changed meanwhile: the limit is that of both ends.
  sample.limit = (sample.limit + ReadLimit(parts_.pool)) / 2;
  sample.seconds = taken / steps;
  sample.experts = static_cast<double>(counter_->Take()) / steps;
  sample.phases = clock_->seconds();
  for (double& phase : sample.phases) phase /= steps;
  return sample;
}

absl::StatusOr<StepBench::Sample> StepBench::SamplePrefill(
    const StepCase& what) {
  std::vector<Stream> streams = Admit(what);
  Sample sample;
  sample.limit = ArithmeticPeak();
  counter_->Take();
  clock_->Start();
  const Clock::time_point begin = Clock::now();
  for (int64_t at = 0; at < what.rows; at += options_.rows_per_step) {
    TL_RETURN_IF_ERROR(
        Step(&streams, std::min(options_.rows_per_step, what.rows - at)));
  }
  sample.seconds = Seconds(Clock::now() - begin);
  sample.limit = (sample.limit + ArithmeticPeak()) / 2;
  sample.experts = static_cast<double>(counter_->Take());
  sample.phases = clock_->seconds();
  return sample;
}

double StepBench::ArithmeticPeak() const {
  constexpr int kRepeats = 3;
  return parts_.numerics == kernels::Numerics::kBf16Dot
             ? kernels::Bf16DotPeak(*parts_.pool, kRepeats)
             : kernels::FmaPeak(*parts_.pool, kRepeats);
}

double StepBench::Work(const StepCase& what, double experts) const {
  using model::TensorPart;
  const model::PartCensus& head = census_.part(TensorPart::kHead);
  const model::PartCensus& embedding = census_.part(TensorPart::kEmbedding);
  const model::PartCensus& routed = census_.part(TensorPart::kRoutedExperts);
  const model::PartCensus all = census_.model();
  const auto rows = static_cast<double>(what.rows);
  if (what.prefill) {
    // The head is computed for the last row of each step.
    const double steps = static_cast<double>(
        (what.rows + options_.rows_per_step - 1) / options_.rows_per_step);
    return 2.0 *
           (static_cast<double>(all.active_parameters - head.active_parameters -
                                embedding.active_parameters) *
                rows +
            steps * static_cast<double>(head.active_parameters));
  }
  int64_t expert_count = 0;
  for (const model::LayerSpec& layer : parts_.checkpoint->config().layers) {
    if (layer.kind == model::LayerKind::kMoe) expert_count += layer.moe.experts;
  }
  const double expert_bytes = expert_count == 0
                                  ? 0
                                  : static_cast<double>(routed.bytes) /
                                        static_cast<double>(expert_count);
  const double state = static_cast<double>(
      census_.state_bytes() + census_.kv_bytes_per_token * what.context);
  return static_cast<double>(all.decode_bytes - routed.decode_bytes -
                             embedding.decode_bytes) +
         experts * expert_bytes +
         rows * (state + static_cast<double>(embedding.decode_bytes));
}

absl::StatusOr<StepFigures> StepBench::Measure(const StepCase& what) {
  std::vector<double> seconds, limits, ratios, works, experts;
  std::array<std::vector<double>, trunk::kStepPhases> phases;
  for (int r = 0; r < options_.repeats; ++r) {
    TL_ASSIGN_OR_RETURN(const Sample sample, what.prefill ? SamplePrefill(what)
                                                          : SampleDecode(what));
    const double work = Work(what, sample.experts);
    seconds.push_back(sample.seconds);
    limits.push_back(sample.limit);
    works.push_back(work);
    experts.push_back(sample.experts);
    ratios.push_back(work / sample.seconds / sample.limit);
    for (size_t p = 0; p < phases.size(); ++p)
      phases[p].push_back(sample.phases[p]);
  }
  StepFigures figures;
  figures.what = what;
  figures.seconds = Median(seconds);
  figures.tokens_per_second = static_cast<double>(what.rows) / figures.seconds;
  figures.work = Median(works);
  figures.rate = figures.work / figures.seconds;
  figures.limit = Median(limits);
  figures.experts = Median(experts);
  const auto [low, high] = std::minmax_element(ratios.begin(), ratios.end());
  figures.ratio_low = *low;
  figures.ratio_high = *high;
  figures.ratio = Median(ratios);
  for (size_t p = 0; p < phases.size(); ++p)
    figures.phases[p] = Median(phases[p]);
  return figures;
}

}  // namespace trunkline::cli
