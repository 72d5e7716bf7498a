#include "trunk_worker/trunk_weights.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <variant>

#include "common/bfloat16.h"
#include "tests/golden/checkpoint_fixture.h"

namespace trunkline::trunk {
namespace {

using trunkline::testing::CheckpointFixture;
using trunkline::testing::LoadedModel;

TEST(TrunkWeights, ProgressGrowsToTheTrunksBytesAndMemoryIsCounted) {
  auto checkpoint =
      model::Checkpoint::Open(CheckpointFixture("tiny-bf16").checkpoint);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  ThreadPool pool(ThreadPool::Options{});
  std::vector<TrunkWeights::Progress> seen;
  auto weights = TrunkWeights::Load(
      **checkpoint, {&pool},
      [&](const TrunkWeights::Progress& p) { seen.push_back(p); });
  ASSERT_TRUE(weights.ok()) << weights.status();
  int64_t stored = 0;
  for (const model::TensorInfo& t : (*checkpoint)->tensors())
    if (t.role == model::TensorRole::kTrunk) stored += t.bytes;
  ASSERT_FALSE(seen.empty());
  for (size_t i = 1; i < seen.size(); ++i)
    EXPECT_GE(seen[i].bytes_done, seen[i - 1].bytes_done);
  EXPECT_EQ(seen.back().bytes_done, stored);
  EXPECT_EQ(seen.back().bytes_total, stored);
  EXPECT_GE(weights->bytes(), stored);
  EXPECT_LT(weights->bytes(), 2 * stored);
}

// The router's product is fp32 whatever the file stores; the convolution's
// weights stand tap by tap.
TEST(TrunkWeights, GatesAreWidenedAndConvolutionsTransposed) {
  auto model = LoadedModel::Load(CheckpointFixture("tiny-bf16").checkpoint);
  const model::ModelConfig& config = model->checkpoint().config();
  auto map = model->checkpoint().MapTrunk();
  ASSERT_TRUE(map.ok());
  for (const model::LayerSpec& spec : config.layers) {
    const LayerWeights& layer = model->weights().layers()[spec.index.value];
    if (const auto* moe = std::get_if<MoeWeights>(&layer.mixer)) {
      EXPECT_EQ(moe->gate.dtype(), DType::kF32);
      EXPECT_EQ(moe->gate.n(), spec.moe.experts);
    }
    if (const auto* mamba = std::get_if<MambaWeights>(&layer.mixer)) {
      const auto view =
          (*map)->Find("layers." + std::to_string(spec.index.value) +
                       ".mixer.conv1d.weight");
      ASSERT_TRUE(view.ok());
      ASSERT_EQ(view->dtype, DType::kBF16);
      const int64_t channels = spec.mamba.conv_dim();
      for (int64_t c = 0; c < channels; c += 37) {
        for (int64_t tap = 0; tap < spec.mamba.conv_kernel; ++tap) {
          Bf16Bits bits;
          std::memcpy(&bits,
                      view->data + 2 * (c * spec.mamba.conv_kernel + tap), 2);
          EXPECT_EQ(mamba->conv_weight[tap * channels + c], Bf16ToFloat(bits));
        }
      }
      for (float a : mamba->a) EXPECT_LT(a, 0.0f);
    }
  }
}

}  // namespace
}  // namespace trunkline::trunk
