// One row, one answer: a sequence's logits do not depend on its batch mates, on
// how its prompt was cut into chunks, on the thread count, on the vector width,
// or on how the experts' rows were grouped. Bit for bit.

#include "tests/golden/exactness.h"

#include <gtest/gtest.h>

#include "common/check.h"
#include "kernels/kernel_context.h"
#include "tests/golden/plain_experts.h"

namespace trunkline::testing {
namespace {

class Exactness : public ::testing::TestWithParam<ClassCase> {
 protected:
  void SetUp() override {
    if (const absl::Status has = kernels::CheckMachineHas(GetParam().numerics);
        !has.ok()) {
      GTEST_SKIP() << has.message();
    }
    alone_ = std::make_unique<AloneScores>(Directory(), GetParam().numerics);
  }
  static std::string Directory() { return DirectoryOf(GetParam().checkpoint); }
  static std::unique_ptr<LoadedModel> LoadAgain(int threads) {
    return LoadedModel::Load(Directory(), threads, GetParam().numerics);
  }
  std::unique_ptr<AloneScores> alone_;
};

TEST_P(Exactness, SevenBatchMatesChangeNoBit) {
  alone_->ExpectSame(alone_->model(), AloneScores::Options(256, 256));
}

TEST_P(Exactness, PrefillChunksChangeNoBit) {
  for (int64_t chunk : {1, 7, 64}) {
    SCOPED_TRACE(chunk);
    alone_->ExpectSame(alone_->model(), AloneScores::Options(97, chunk));
  }
}

TEST_P(Exactness, ATightStepWithTurnsChangesNoBit) {
  alone_->ExpectSame(alone_->model(), AloneScores::Options(5, 3));
}

TEST_P(Exactness, TwoThreadsChangeNoBit) {
  auto threaded = LoadAgain(2);
  alone_->ExpectSame(*threaded, AloneScores::Options(256, 64));
}

TEST_P(Exactness, TheVectorWidthChangesNoBit) {
  for (const std::string& target : kernels::SupportedTargets()) {
    SCOPED_TRACE(target);
    ASSERT_TRUE(kernels::SelectTarget(target).ok());
    // Packed again: packing is part of what must not matter.
    auto model = LoadAgain(1);
    alone_->ExpectSame(*model, AloneScores::Options(64, 16));
  }
  ASSERT_TRUE(kernels::SelectTarget("auto").ok());
}

// The engine's experts against one route after another with the reference
// kernels.
TEST_P(Exactness, ExpertsEqualThePlainFormula) {
  ScoreOptions options = AloneScores::Options(64, 16);
  options.experts = [](LoadedModel& model) {
    auto experts = PlainExperts::Load(model.checkpoint(), model.context());
    TL_CHECK(experts.ok()) << experts.status();
    return *std::move(experts);
  };
  alone_->ExpectSame(alone_->model(), options);
}

INSTANTIATE_TEST_SUITE_P(
    Checkpoints, Exactness,
    ::testing::Values(ClassCase{"tiny"}, ClassCase{"tiny-dense"},
                      ClassCase{"tiny-latent"}, ClassCase{"tiny-bf16"},
                      ClassCase{"demo"},
                      ClassCase{"tiny-bf16", kernels::Numerics::kBf16Dot},
                      ClassCase{"demo", kernels::Numerics::kBf16Dot}),
    NameOf);

}  // namespace
}  // namespace trunkline::testing
