// The canary over a tiny checkpoint: what its digest depends on, and when it
// runs.

#include "trunk_worker/canary.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <mutex>

#include "tests/golden/checkpoint_fixture.h"
#include "tests/integration/eventually.h"

namespace trunkline::trunk {
namespace {

using trunkline::Eventually;
using trunkline::testing::CheckpointFixture;
using trunkline::testing::LoadedModel;

constexpr std::chrono::seconds kSoon{30};

// A placement version of the test's choice over local experts, of which one may
// be wrong by the last bit of one output.
class PlantedExperts : public ExpertExchange {
 public:
  struct Plan {
    std::atomic<uint64_t> version{1};
    std::atomic<bool> wrong{false};
    std::atomic<int> fail_in{0};  // so many layers; 0: never
  };
  PlantedExperts(std::unique_ptr<ExpertExchange> real, Plan* plan)
      : real_(std::move(real)), plan_(*plan) {}

  absl::Status Ready() override { return absl::OkStatus(); }
  absl::StatusOr<PlacementVersion> BeginStep(StepId step) override {
    const auto begun = real_->BeginStep(step);
    if (!begun.ok()) return begun;
    return PlacementVersion(plan_.version);
  }
  void EndStep(StepId step) override { real_->EndStep(step); }
  absl::Status Begin(const MoeCall& call) override {
    return real_->Begin(call);
  }
  absl::Status Finish(const MoeCall& call) override {
    const absl::Status status = real_->Finish(call);
    if (plan_.fail_in > 0 && --plan_.fail_in == 0) {
      return absl::UnavailableError("expert-1: layer 4, expert 7");
    }
    if (!plan_.wrong) return status;
    const routing::RouteTable& routes = *call.routes;
    for (int64_t r = 0; r < routes.size(); ++r) {
      if (routes.expert_id[r] != ExpertId(0)) continue;
      float& value = call.combined[routes.token_id[r] * call.combined_stride];
      value = std::nextafter(value, 1e30f) * 1.01f;
    }
    return status;
  }

 private:
  const std::unique_ptr<ExpertExchange> real_;
  Plan& plan_;
};

class CanaryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    model_ = LoadedModel::Load(CheckpointFixture("tiny").checkpoint);
    Engine::Options options;
    options.state.tokens_max = 512;
    options.state.sequences_max = 4;
    options.batch.prefill_chunk = 16;
    engine_ = model_->NewEngine(
        std::move(options),
        std::make_unique<PlantedExperts>(model_->NewLocalExperts(), &plan_));
    Canary::Options canary;
    canary.vocab_size = model_->checkpoint().config().vocab_size;
    canary.prompt_tokens = 48;
    canary.between_attempts = absl::ZeroDuration();
    canary.on_failure = [this](const absl::Status&) { ++failures_; };
    canary.now = [this] { return engine_->Now(); };
    canary.start = [this](GenerationRequest request, OutputSink sink) {
      return engine_->Start(std::move(request), std::move(sink)).status();
    };
    options_ = canary;
    canary_ = std::make_unique<Canary>(canary);
  }
  // The digest under `version`, which is what steps run under from now on.
  std::string DigestUnder(uint64_t version) {
    plan_.version = version;
    EXPECT_TRUE(Eventually(kSoon, [&] {
      canary_->Look(PlacementVersion(version));
      const auto result = canary_->result();
      return result.has_value() && result->version.value == version;
    }));
    return canary_->result()->digest;
  }

  PlantedExperts::Plan plan_;
  std::unique_ptr<LoadedModel> model_;
  Canary::Options options_;
  std::atomic<int> failures_{0};
  std::unique_ptr<Canary> canary_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(CanaryTest, VersionsAndBatchMatesChangeNoBit) {
  const std::string one = DigestUnder(1);
  EXPECT_EQ(one.size(), 32u);
  // Others run beside it: batches and chunks are cut differently.
  std::atomic<int> ended{0};
  for (int i = 0; i < 2; ++i) {
    GenerationRequest other;
    other.prompt = {5, 6, 7};
    other.max_tokens = 300;
    ASSERT_TRUE(
        engine_
            ->Start(other,
                    [&](const Output& output) { ended += output.finished; })
            .ok());
  }
  EXPECT_EQ(DigestUnder(2), one);
  const auto result = canary_->result();
  EXPECT_EQ(result->before_version, PlacementVersion(1));
  EXPECT_EQ(result->before_digest, one);
  ASSERT_TRUE(Eventually(kSoon, [&] { return ended == 2; }));
}

TEST_F(CanaryTest, AWrongExpertChangesTheDigest) {
  const std::string good = DigestUnder(1);
  plan_.wrong = true;
  EXPECT_NE(DigestUnder(2), good);
  plan_.wrong = false;
  EXPECT_EQ(DigestUnder(3), good);
}

TEST_F(CanaryTest, ARunThatAFailedStepDisturbedIsBegunAgain) {
  const std::string good = DigestUnder(1);
  // In its third chunk: the rows of the first two are computed again.
  plan_.fail_in = static_cast<int>(
      2 * model_->checkpoint().config().MoeLayers().size() + 1);
  EXPECT_EQ(DigestUnder(2), good);
  EXPECT_EQ(failures_, 1);
}

// The placement changes in the middle: no version can be blamed or cleared.
TEST_F(CanaryTest, ARunUnderTwoVersionsGivesNoResult) {
  const std::string good = DigestUnder(1);
  plan_.version = 3;  // steps run under 3 while version 2 is asked for
  ASSERT_TRUE(Eventually(kSoon, [&] {
    canary_->Look(PlacementVersion(2));
    return canary_->result()->version == PlacementVersion(3);
  }));
  EXPECT_EQ(canary_->result()->digest, good);
}

TEST_F(CanaryTest, WithoutPromptTokensItNeverRuns) {
  options_.prompt_tokens = 0;
  Canary off(options_);
  off.Look(PlacementVersion(1));
  EXPECT_FALSE(off.result().has_value());
  EXPECT_EQ(engine_->Stats().running + engine_->Stats().waiting, 0u);
}

}  // namespace
}  // namespace trunkline::trunk
