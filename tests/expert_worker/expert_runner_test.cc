// The runner against the plain reference: the answer to a frame is a function
// of the frame and the weights, whatever it is batched with.

#include "expert_worker/expert_runner.h"

#include <gtest/gtest.h>

#include <list>

#include "kernels/combine_rows.h"
#include "tests/expert_worker/dispatch_frame.h"

namespace trunkline::expert {
namespace {

constexpr int64_t kWidth = 48;
constexpr int64_t kInner = 40;
constexpr uint32_t kExperts = 6;

kernels::PackedMatrix RandomMatrix(int64_t n, int64_t k, uint64_t seed,
                                   DType dtype, ThreadPool& pool) {
  std::vector<float> f32(n * k);
  std::vector<Bf16Bits> bf16(n * k);
  RandomStream random(seed);
  for (int64_t i = 0; i < n * k; ++i) {
    bf16[i] = FloatToBf16(static_cast<float>(random.NextUnit() - 0.5) * 0.5f);
    f32[i] = dtype == DType::kBF16
                 ? Bf16ToFloat(bf16[i])
                 : static_cast<float>(random.NextUnit() - 0.5) * 0.5f;
  }
  TensorView view{"random", dtype, {n, k}, nullptr};
  view.data = dtype == DType::kBF16
                  ? reinterpret_cast<const std::byte*>(bf16.data())
                  : reinterpret_cast<const std::byte*>(f32.data());
  return kernels::PackedMatrix::Pack(view, pool).value();
}

class ExpertRunnerTest : public ::testing::TestWithParam<DType> {
 protected:
  ExpertRunnerTest() {
    Shard::Entries entries;
    for (uint32_t e = 0; e < kExperts; ++e) {
      auto weights = std::make_shared<kernels::MlpWeights>();
      weights->up = RandomMatrix(kInner, kWidth, 2 * e + 1, GetParam(), pool_);
      weights->down =
          RandomMatrix(kWidth, kInner, 2 * e + 2, GetParam(), pool_);
      entries[{LayerIndex(1), ExpertId(e)}] = weights;
    }
    shard_ = std::make_unique<Shard>(std::move(entries));
  }

  kernels::Activation activation() const {
    return GetParam() == DType::kBF16 ? kernels::Activation::kBf16
                                      : kernels::Activation::kF32;
  }

  TestFrame RandomFrame(uint64_t seed) {
    TestFrame frame;
    frame.header.row_dtype = GetParam();
    frame.header.layer = 1;
    frame.header.step_id = seed;
    frame.header.row_width = kWidth;
    frame.seed = seed;
    RandomStream random(seed);
    const auto rows = static_cast<uint32_t>(1 + random.NextBelow(9));
    for (uint32_t e = 0; e < kExperts; ++e) {
      for (uint32_t r = 0; r < rows; ++r) {
        // Every row has a route: its first expert always.
        if (e != r % kExperts && random.NextBelow(3) != 0) continue;
        frame.routes.push_back({r * 2, static_cast<uint16_t>(e), e, r,
                                static_cast<float>(random.NextUnit())});
      }
    }
    return frame;
  }

  Batch MakeBatch(const std::vector<TestFrame>& frames) {
    Batch batch;
    batch.version = PlacementVersion(1);
    batch.layer = LayerIndex(1);
    batch.row_width = kWidth;
    std::vector<std::span<const uint32_t>> experts;
    for (const TestFrame& frame : frames) {
      bytes_.push_back(frame.Bytes());
      BatchFrame entry;
      entry.view = dispatch::DecodeDispatch(bytes_.back().bytes()).value();
      entry.received = clock_.Now();
      batch.frames.push_back(entry);
      experts.push_back(batch.frames.back().view.expert_id);
    }
    batch.routes = GroupByExpert(experts, kExperts);
    return batch;
  }

  std::vector<AlignedBuffer> Run(const std::vector<TestFrame>& frames,
                                 AnswerForm form) {
    ExpertRunner runner(kernels::KernelContext{&pool_}, activation(), form,
                        &clock_);
    const Batch batch = MakeBatch(frames);
    std::vector<AlignedBuffer> answers;
    std::vector<std::span<std::byte>> spans;
    for (const BatchFrame& frame : batch.frames) {
      answers.emplace_back(runner.AnswerBytes(frame));
      spans.emplace_back(answers.back().data(), answers.back().size());
    }
    const absl::Status status = runner.Run(batch, *shard_, spans);
    EXPECT_TRUE(status.ok()) << status;
    return answers;
  }

  // The output of one row by the plain formula.
  std::vector<float> Expected(const TestFrame& frame, const TestRoute& route) {
    std::vector<float> x(kWidth);
    for (int64_t c = 0; c < kWidth; ++c)
      x[c] = frame.At(route.row, static_cast<uint32_t>(c));
    std::vector<float> y(kWidth);
    const kernels::MlpGroup group{
        shard_->Find({LayerIndex(1), ExpertId(route.expert)}), 0, 1};
    kernels::GroupedMlpArgs args;
    args.x = x.data();
    args.x_stride = kWidth;
    args.groups = {&group, 1};
    args.y = y.data();
    args.y_stride = kWidth;
    args.out = activation();
    kernels::reference::GroupedMlp(args);
    return y;
  }

  ThreadPool pool_{ThreadPool::Options{2, {}, 50}};
  ManualClock clock_;
  std::unique_ptr<Shard> shard_;
  std::list<AlignedBuffer> bytes_;
};

TEST_P(ExpertRunnerTest, GatedAnswersHoldGateTimesTheReferenceOutput) {
  const std::vector<TestFrame> frames = {RandomFrame(3), RandomFrame(4),
                                         RandomFrame(5)};
  const std::vector<AlignedBuffer> answers = Run(frames, AnswerForm::kGatedF32);
  for (size_t f = 0; f < frames.size(); ++f) {
    const auto answer = dispatch::DecodeAnswer(answers[f].bytes());
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->header.step_id, frames[f].header.step_id);
    EXPECT_TRUE(answer->header.gated);
    ASSERT_EQ(answer->token_id.size(), frames[f].routes.size());
    for (size_t i = 0; i < frames[f].routes.size(); ++i) {
      const TestRoute& route = frames[f].routes[i];
      EXPECT_EQ(answer->token_id[i], route.token);
      EXPECT_EQ(answer->slot[i], route.slot);
      EXPECT_EQ(answer->expert_id[i], route.expert);
      const std::vector<float> y = Expected(frames[f], route);
      const auto* row = reinterpret_cast<const float*>(answer->rows.data() +
                                                       i * answer->row_stride);
      for (int64_t c = 0; c < kWidth; ++c)
        ASSERT_EQ(row[c], route.gate * y[c]) << f << " " << i << " " << c;
    }
  }
}

// An ungated bf16 answer needs bf16 activations.
class UngatedRunnerTest : public ExpertRunnerTest {};

TEST_P(UngatedRunnerTest, UngatedAnswersHoldTheOutputItself) {
  const std::vector<TestFrame> frames = {RandomFrame(6), RandomFrame(7)};
  const std::vector<AlignedBuffer> answers =
      Run(frames, AnswerForm::kUngatedBf16);
  for (size_t f = 0; f < frames.size(); ++f) {
    const auto answer = dispatch::DecodeAnswer(answers[f].bytes());
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_FALSE(answer->header.gated);
    EXPECT_EQ(answer->header.row_dtype, DType::kBF16);
    for (size_t i = 0; i < frames[f].routes.size(); ++i) {
      const std::vector<float> y = Expected(frames[f], frames[f].routes[i]);
      const auto* row = reinterpret_cast<const Bf16Bits*>(
          answer->rows.data() + i * answer->row_stride);
      for (int64_t c = 0; c < kWidth; ++c)
        ASSERT_EQ(Bf16ToFloat(row[c]), y[c]) << f << " " << i << " " << c;
    }
  }
}

// Promise 1: batch neighbours change no bit.
TEST_P(ExpertRunnerTest, AnAnswerAloneEqualsTheAnswerInACrowd) {
  std::vector<TestFrame> crowd;
  for (uint64_t seed = 20; seed < 30; ++seed)
    crowd.push_back(RandomFrame(seed));
  const std::vector<AlignedBuffer> together = Run(crowd, AnswerForm::kGatedF32);
  for (size_t f = 0; f < crowd.size(); ++f) {
    const std::vector<AlignedBuffer> alone =
        Run({crowd[f]}, AnswerForm::kGatedF32);
    ASSERT_EQ(alone[0].size(), together[f].size());
    EXPECT_EQ(std::memcmp(alone[0].data(), together[f].data(), alone[0].size()),
              0)
        << f;
  }
}

TEST_P(ExpertRunnerTest, AMissingExpertIsAnErrorThatNamesIt) {
  const TestFrame frame = RandomFrame(1);
  Batch batch = MakeBatch({frame});
  const Shard empty({});
  ExpertRunner runner(kernels::KernelContext{&pool_}, activation(),
                      AnswerForm::kGatedF32, &clock_);
  AlignedBuffer answer(runner.AnswerBytes(batch.frames[0]));
  const std::span<std::byte> span(answer.data(), answer.size());
  const absl::Status status = runner.Run(batch, empty, {&span, 1});
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_NE(std::string(status.message()).find("expert 0 of layer 1"),
            std::string::npos)
      << status;
}

INSTANTIATE_TEST_SUITE_P(Rows, UngatedRunnerTest,
                         ::testing::Values(DType::kBF16));
INSTANTIATE_TEST_SUITE_P(Rows, ExpertRunnerTest,
                         ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& p) {
                           return std::string(DTypeName(p.param));
                         });

}  // namespace
}  // namespace trunkline::expert
