// A step of a warm engine allocates nothing: malloc itself is counted, on every
// thread, whoever calls it.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>

#include "model/shape_presets.h"
#include "tests/model/checkpoint_builder.h"
#include "trunk_worker/layer_runner.h"
#include "trunk_worker/local_experts.h"
#include "trunk_worker/sequence_state.h"
#include "trunk_worker/step_plan.h"
#include "trunk_worker/trunk_weights.h"

namespace {
std::atomic<bool> g_counting{false};
std::atomic<int64_t> g_allocations{0};
}  // namespace

// glibc's own names for what the program's malloc stands in front of.
extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* block, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);

void* malloc(size_t bytes) {
  if (g_counting) ++g_allocations;
  return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  if (g_counting) ++g_allocations;
  return __libc_calloc(count, bytes);
}
void* realloc(void* block, size_t bytes) {
  if (g_counting) ++g_allocations;
  return __libc_realloc(block, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  if (g_counting) ++g_allocations;
  return __libc_memalign(alignment, bytes);
}
}

namespace trunkline::trunk {
namespace {

constexpr int64_t kStreams = 3;
constexpr int64_t kTokensMax = 400;

class StepAllocation : public ::testing::Test {
 protected:
  explicit StepAllocation(int threads = 2) : pool_(Threads(threads)) {}

  void SetUp() override {
    auto spec = model::NamedShape("tiny");
    ASSERT_TRUE(spec.ok());
    auto checkpoint = model::Checkpoint::Open(
        model::BuildCheckpoint(*spec, directory_, "tiny"));
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    checkpoint_ = *std::move(checkpoint);
    const kernels::KernelContext context{&pool_};
    auto weights = TrunkWeights::Load(*checkpoint_, context, {});
    ASSERT_TRUE(weights.ok()) << weights.status();
    weights_ = *std::move(weights);
    auto experts = LocalExperts::Load(*checkpoint_, context);
    ASSERT_TRUE(experts.ok()) << experts.status();
    experts_ = *std::move(experts);
    SequencePool::Options options;
    options.sequences_max = kStreams;
    options.tokens_max = kTokensMax;
    auto states = SequencePool::Create(
        StateLayout::For(checkpoint_->config(), kernels::Activation::kBf16),
        options);
    ASSERT_TRUE(states.ok()) << states.status();
    states_ = *std::move(states);
    runner_ = std::make_unique<LayerRunner>(&checkpoint_->config(), &weights_,
                                            kernels::Activation::kBf16,
                                            experts_.get(), context, 128);
    StartOver();
    tokens_.assign(128, 7);
  }

  void StartOver() {
    streams_.clear();
    for (int64_t i = 0; i < kStreams; ++i)
      streams_.push_back(states_->Admit(kTokensMax));
  }

  // `rows` rows of each stream; the tokens drawn are looked at, not used.
  void Step(int64_t rows) {
    plan_.runs.clear();
    row_runs_.clear();
    for (auto& stream : streams_) {
      StepRun run;
      run.rows = {stream.get(),
                  {tokens_.data(), static_cast<size_t>(rows)},
                  LogitRows::kLast};
      run.sample = true;
      run.spec.params = &params_;
      plan_.runs.push_back(run);
      row_runs_.push_back(run.rows);
    }
    ++plan_.step.value;
    const absl::Status status =
        runner_->RunStep(plan_.step, row_runs_, &logits_);
    SampleStep(plan_, logits_, pool_, &scratch_, &result_);
    ok_ = ok_ && status.ok() && result_.runs.size() == kStreams;
  }

  int64_t AllocationsOf(int64_t rows, int steps) {
    g_allocations = 0;
    g_counting = true;
    for (int i = 0; i < steps; ++i) Step(rows);
    g_counting = false;
    return g_allocations;
  }

  static ThreadPool::Options Threads(int threads) {
    ThreadPool::Options options;
    options.threads = threads;
    return options;
  }

  model::TempDirectory directory_;
  ThreadPool pool_;
  std::shared_ptr<const model::Checkpoint> checkpoint_;
  TrunkWeights weights_;
  std::unique_ptr<LocalExperts> experts_;
  std::unique_ptr<SequencePool> states_;
  std::unique_ptr<LayerRunner> runner_;
  std::vector<std::unique_ptr<SequenceState>> streams_;
  std::vector<int32_t> tokens_;
  StepPlan plan_{StepId(1), {}, 0};
  std::vector<RowRun> row_runs_;
  StepLogits logits_;
  std::vector<SamplerScratch> scratch_;
  StepResult result_;
  SamplingParams params_;
  bool ok_ = true;
};

TEST_F(StepAllocation, TheCountSeesAnAllocation) {
  g_allocations = 0;
  g_counting = true;
  void* block = std::malloc(100);
  auto number = std::make_unique<int>(3);
  g_counting = false;
  std::free(block);
  EXPECT_EQ(*number, 3);
  EXPECT_GE(g_allocations, 2);
}

// Greedy and sampled, over the end of a block of keys and values.
TEST_F(StepAllocation, AWarmDecodeStepAllocatesNothing) {
  for (const float temperature : {0.0f, 0.8f}) {
    params_.temperature = temperature;
    // Which thread samples which row is a matter of chance, and each has
    // memory of its own to warm.
    for (int i = 0; i < 30; ++i) Step(1);
    EXPECT_EQ(AllocationsOf(1, 70), 0) << "temperature " << temperature;
  }
  EXPECT_TRUE(ok_);
}

// How many rows an expert gets decides what its product needs, so the same
// prompts go through twice, on one thread, which then has seen every size.
class PrefillAllocation : public StepAllocation {
 protected:
  PrefillAllocation() : StepAllocation(1) {}
};

TEST_F(PrefillAllocation, AStepLikeOneBeforeAllocatesNothing) {
  for (int i = 0; i < 8; ++i) Step(40);
  StartOver();
  EXPECT_EQ(AllocationsOf(40, 8), 0);
  EXPECT_TRUE(ok_);
}

}  // namespace
}  // namespace trunkline::trunk
