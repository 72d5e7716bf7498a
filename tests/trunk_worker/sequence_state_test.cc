#include "trunk_worker/sequence_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "common/random.h"
#include "kernels/attention.h"
#include "kernels/mamba.h"
#include "trunk_worker/kv_blocks.h"

namespace trunkline::trunk {
namespace {

using kernels::Activation;
using ::testing::HasSubstr;

// M * - E * with different attention shapes.
model::ModelConfig SmallConfig(bool with_attention = true) {
  model::ModelConfig config;
  auto add = [&](model::LayerKind kind) -> model::LayerSpec& {
    model::LayerSpec spec;
    spec.index = LayerIndex(static_cast<uint32_t>(config.layers.size()));
    spec.kind = kind;
    config.layers.push_back(spec);
    return config.layers.back();
  };
  add(model::LayerKind::kMamba).mamba = {.heads = 2,
                                         .head_dim = 8,
                                         .groups = 1,
                                         .state_size = 4,
                                         .conv_kernel = 4};
  if (with_attention)
    add(model::LayerKind::kAttention).attention = {
        .heads = 4, .kv_heads = 2, .head_dim = 16};
  add(model::LayerKind::kMlp);
  add(model::LayerKind::kMoe);
  if (with_attention)
    add(model::LayerKind::kAttention).attention = {
        .heads = 4, .kv_heads = 1, .head_dim = 8};
  return config;
}

std::unique_ptr<SequencePool> Pool(const SequencePool::Options& options,
                                   bool with_attention = true) {
  auto pool = SequencePool::Create(
      StateLayout::For(SmallConfig(with_attention), Activation::kF32), options);
  EXPECT_TRUE(pool.ok()) << pool.status();
  return *std::move(pool);
}

TEST(StateLayout, OnlyAttentionOwnsKvAndOnlyMambaOwnsConvAndScanState) {
  const model::ModelConfig config = SmallConfig();
  const StateLayout layout = StateLayout::For(config, Activation::kF32);
  const auto& m = config.layers[0].mamba;
  const int64_t conv =
      kernels::ConvStateBytes(m.conv_dim(), m.conv_kernel, Activation::kF32);
  const int64_t scan =
      kernels::ScanStateBytes(m.heads, m.head_dim, m.state_size);
  EXPECT_GE(layout.slot_bytes, conv + scan);
  EXPECT_LT(layout.slot_bytes, conv + scan + 128);
  EXPECT_GE(layout.layers[0].scan_offset, conv);
  EXPECT_EQ(layout.attention_layers, 2u);
  EXPECT_GE(layout.kv_block_bytes,
            kernels::KvBlockBytes(2, 16, Activation::kF32) +
                kernels::KvBlockBytes(1, 8, Activation::kF32));
  EXPECT_EQ(layout.BlocksFor(0), 0);
  EXPECT_EQ(layout.BlocksFor(1), 1);
  EXPECT_EQ(layout.BlocksFor(kernels::kKvBlock), 1);
  EXPECT_EQ(layout.BlocksFor(kernels::kKvBlock + 1), 2);
  EXPECT_EQ(
      StateLayout::For(SmallConfig(false), Activation::kF32).BlocksFor(1000),
      0);
}

TEST(SequencePool, StateIsZeroWhenHandedOutAlsoAfterItWasUsed) {
  auto pool = Pool({.sequences_max = 2, .tokens_max = 200});
  const StateLayout layout = StateLayout::For(SmallConfig(), Activation::kF32);
  for (int round = 0; round < 3; ++round) {
    auto state = pool->Admit(200);
    state->BeginStep(150);
    auto all = [&](std::byte* begin, int64_t bytes) {
      const bool zero = std::all_of(
          begin, begin + bytes, [](std::byte b) { return b == std::byte{0}; });
      std::fill(begin, begin + bytes, std::byte{0xab});
      return zero;
    };
    EXPECT_TRUE(
        all(state->conv_state(LayerIndex(0)), layout.layers[0].scan_offset));
    EXPECT_TRUE(all(state->scan_state(LayerIndex(0)),
                    layout.slot_bytes - layout.layers[0].scan_offset));
    ASSERT_EQ(state->kv_blocks(LayerIndex(1)).size(), 3u);
    for (std::byte* block : state->kv_blocks(LayerIndex(1)))
      EXPECT_TRUE(all(block, kernels::KvBlockBytes(2, 16, Activation::kF32)));
    for (std::byte* block : state->kv_blocks(LayerIndex(4)))
      EXPECT_TRUE(all(block, kernels::KvBlockBytes(1, 8, Activation::kF32)));
    state->CommitStep();
    EXPECT_EQ(state->length(), 150);
  }
}

TEST(SequencePool, RefusesWhatDoesNotFitAndSaysWhatIsShort) {
  auto pool = Pool({.sequences_max = 2, .tokens_max = 640});
  auto one = pool->Admit(640);
  auto two = pool->Admit(64);
  EXPECT_THAT(pool->CanAdmit(64).message(), HasSubstr("all 2 sequence slots"));
  two.reset();
  EXPECT_TRUE(pool->CanAdmit(64).ok());

  const StateLayout layout = StateLayout::For(SmallConfig(), Activation::kF32);
  const int64_t tight = layout.slot_bytes * 8 + layout.kv_block_bytes * 12;
  auto small =
      Pool({.sequences_max = 8, .tokens_max = 640, .memory_bytes = tight});
  EXPECT_LE(small->bytes_total(), tight);
  auto big = small->Admit(640);  // 10 of the 12 blocks
  const absl::Status status = small->CanAdmit(129);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("129 tokens"));
  EXPECT_TRUE(small->CanAdmit(128).ok());
}

TEST(SequencePool, AMemoryBudgetBelowOneFullSequenceIsRefusedWithTheNeed) {
  const auto pool = SequencePool::Create(
      StateLayout::For(SmallConfig(), Activation::kF32),
      {.sequences_max = 4, .tokens_max = 6400, .memory_bytes = 10000});
  EXPECT_EQ(pool.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(pool.status().message(), HasSubstr("10000 bytes"));
  EXPECT_THAT(pool.status().message(), HasSubstr("6400"));
}

TEST(SequencePool, AModelWithoutAttentionIsBoundedBySlotsAlone) {
  auto pool = Pool({.sequences_max = 2, .tokens_max = 1 << 20}, false);
  auto state = pool->Admit(1 << 20);
  state->BeginStep(1000);
  state->CommitStep();
  EXPECT_EQ(pool->kv().blocks(), 0);
  EXPECT_GT(pool->bytes_used(), 0);
}

// Random lives of sequences, some ended in the middle of a step: an admitted
// sequence always gets its blocks, no two share one, and every count returns
// to where it began.
TEST(SequencePool, CountsAreExactThroughRandomLives) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    RandomStream random(seed);
    const StateLayout layout =
        StateLayout::For(SmallConfig(), Activation::kF32);
    auto pool = Pool(
        {.sequences_max = 6,
         .tokens_max = 512,
         .memory_bytes = layout.slot_bytes * 6 + layout.kv_block_bytes * 20});
    const int64_t start = pool->bytes_used();
    std::vector<std::unique_ptr<SequenceState>> live;
    for (int step = 0; step < 200; ++step) {
      const int64_t tokens = 1 + static_cast<int64_t>(random.NextBelow(512));
      if (pool->CanAdmit(tokens).ok()) live.push_back(pool->Admit(tokens));
      if (live.empty()) continue;
      const size_t i = random.NextBelow(live.size());
      const int64_t left = live[i]->tokens_max() - live[i]->length();
      if (left == 0 || random.NextBelow(8) == 0) {
        live.erase(live.begin() + i);
      } else {
        live[i]->BeginStep(1 + static_cast<int64_t>(random.NextBelow(left)));
        if (random.NextBelow(8) == 0) {
          live.erase(live.begin() + i);  // the step failed
        } else {
          live[i]->CommitStep();
        }
      }
      std::set<std::byte*> blocks;
      int64_t reserved = 0;
      for (const auto& state : live) {
        const auto own = state->kv_blocks(LayerIndex(1));
        ASSERT_EQ(static_cast<int64_t>(own.size()),
                  layout.BlocksFor(state->length()));
        for (std::byte* block : own) ASSERT_TRUE(blocks.insert(block).second);
        reserved += layout.BlocksFor(state->tokens_max());
      }
      ASSERT_EQ(pool->bytes_used(),
                layout.slot_bytes * static_cast<int64_t>(live.size()) +
                    reserved * layout.kv_block_bytes);
      ASSERT_LE(pool->bytes_used(), pool->bytes_total());
    }
    live.clear();
    EXPECT_EQ(pool->bytes_used(), start);
    EXPECT_EQ(pool->sequences(), 0);
    EXPECT_EQ(pool->kv().available(), pool->kv().blocks());
  }
}

TEST(SequenceStateDeathTest, AStateThatIsHalfAdvancedCanNotBeUsedAgain) {
  auto pool = Pool({.sequences_max = 1, .tokens_max = 64});
  auto state = pool->Admit(64);
  state->BeginStep(1);
  EXPECT_DEATH(state->BeginStep(1), "half advanced");
}

}  // namespace
}  // namespace trunkline::trunk
