// One row, one answer: a sequence's logits do not depend on its batch mates, on
// how its prompt was cut into chunks, on the thread count, on the vector width,
// or on how the experts' rows were grouped. Bit for bit.

#include <gtest/gtest.h>

#include <bit>
#include <cstring>

#include "common/check.h"
#include "common/random.h"
#include "kernels/kernel_context.h"
#include "tests/golden/checkpoint_fixture.h"
#include "tests/golden/plain_experts.h"

namespace trunkline::testing {
namespace {

class Exactness : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    directory_ = std::string(GetParam()) == "demo"
                     ? DemoFixture().checkpoint
                     : CheckpointFixture(GetParam()).checkpoint;
    model_ = LoadedModel::Load(directory_);
    const auto vocab =
        static_cast<uint64_t>(model_->checkpoint().config().vocab_size);
    RandomStream random(1);
    // Lengths around the block of keys, the convolution's reach and a chunk.
    for (size_t length : {1u, 2u, 3u, 5u, 63u, 64u, 65u, 131u}) {
      prompts_.emplace_back();
      for (size_t i = 0; i < length; ++i)
        prompts_.back().push_back(
            static_cast<int32_t>(random.NextBelow(vocab)));
    }
    for (const auto& prompt : prompts_)
      alone_.push_back(ScoreTogether(*model_, {prompt}, Options(256, 256))[0]);
  }

  static ScoreOptions Options(int64_t rows, int64_t chunk) {
    ScoreOptions options;
    options.batch = {.rows_max = rows, .prefill_chunk = chunk};
    options.max_tokens = 6;
    return options;
  }

  void ExpectAsAlone(const std::vector<Scored>& scored) {
    ASSERT_EQ(scored.size(), alone_.size());
    for (size_t i = 0; i < scored.size(); ++i) {
      EXPECT_EQ(scored[i].token_ids, alone_[i].token_ids) << "prompt " << i;
      ASSERT_EQ(scored[i].logits.size(), alone_[i].logits.size());
      EXPECT_EQ(std::memcmp(scored[i].logits.data(), alone_[i].logits.data(),
                            scored[i].logits.size() * sizeof(float)),
                0)
          << "prompt " << i;
    }
  }

  std::string directory_;
  std::unique_ptr<LoadedModel> model_;
  std::vector<std::vector<int32_t>> prompts_;
  std::vector<Scored> alone_;
};

TEST_P(Exactness, SevenBatchMatesChangeNoBit) {
  ExpectAsAlone(ScoreTogether(*model_, prompts_, Options(256, 256)));
}

TEST_P(Exactness, PrefillChunksChangeNoBit) {
  for (int64_t chunk : {1, 7, 64}) {
    SCOPED_TRACE(chunk);
    ExpectAsAlone(ScoreTogether(*model_, prompts_, Options(97, chunk)));
  }
}

TEST_P(Exactness, ATightStepWithTurnsChangesNoBit) {
  ExpectAsAlone(ScoreTogether(*model_, prompts_, Options(5, 3)));
}

TEST_P(Exactness, TwoThreadsChangeNoBit) {
  auto threaded = LoadedModel::Load(directory_, 2);
  ExpectAsAlone(ScoreTogether(*threaded, prompts_, Options(256, 64)));
}

TEST_P(Exactness, TheVectorWidthChangesNoBit) {
  for (const std::string& target : kernels::SupportedTargets()) {
    SCOPED_TRACE(target);
    ASSERT_TRUE(kernels::SelectTarget(target).ok());
    // Packed again: packing is part of what must not matter.
    auto model = LoadedModel::Load(directory_);
    ExpectAsAlone(ScoreTogether(*model, prompts_, Options(64, 16)));
  }
  ASSERT_TRUE(kernels::SelectTarget("auto").ok());
}

// The engine's experts against one route after another with the reference
// kernels.
TEST_P(Exactness, ExpertsEqualThePlainFormula) {
  ScoreOptions options = Options(64, 16);
  options.experts = [](LoadedModel& model) {
    auto experts = PlainExperts::Load(model.checkpoint(), model.pool());
    TL_CHECK(experts.ok()) << experts.status();
    return *std::move(experts);
  };
  ExpectAsAlone(ScoreTogether(*model_, prompts_, options));
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, Exactness,
                         ::testing::Values("tiny", "tiny-dense", "tiny-latent",
                                           "tiny-bf16", "demo"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace trunkline::testing
