#include "model/census.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/model/checkpoint_builder.h"

namespace trunkline::model {
namespace {

using nlohmann::json;

ModelConfig Released(const char* pattern, const json& overrides) {
  json config = {{"architectures", {"NemotronHForCausalLM"}},
                 {"model_type", "nemotron_h"},
                 {"hybrid_override_pattern", pattern},
                 {"vocab_size", 131072},
                 {"num_attention_heads", 32},
                 {"num_key_value_heads", 2},
                 {"head_dim", 128},
                 {"mamba_head_dim", 64},
                 {"ssm_state_size", 128},
                 {"n_groups", 8},
                 {"conv_kernel", 4}};
  config.update(overrides);
  auto parsed = ParseModelConfig(config.dump(), "config.json");
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return *parsed;
}

ModelConfig Lightning() {
  return Released("MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
                  {{"hidden_size", 2688},
                   {"mamba_num_heads", 64},
                   {"n_routed_experts", 128},
                   {"num_experts_per_tok", 6},
                   {"moe_intermediate_size", 1856},
                   {"moe_shared_expert_intermediate_size", 3712},
                   {"num_nextn_predict_layers", 1}});
}

ModelConfig Super() {
  return Released(
      "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*"
      "EMEMEMEMEM*EMEMEMEM*EMEMEMEME",
      {{"hidden_size", 4096},
       {"mamba_num_heads", 128},
       {"n_routed_experts", 512},
       {"num_experts_per_tok", 22},
       {"moe_intermediate_size", 2688},
       {"moe_latent_size", 1024},
       {"moe_shared_expert_intermediate_size", 5376}});
}

double GigaBytes(int64_t bytes) { return static_cast<double>(bytes) / 1e9; }

// The published numbers of the released model.
TEST(Census, MatchesLightning) {
  const Census census = TakeCensus(Lightning(), DType::kBF16);
  EXPECT_EQ(census.state_bytes(), 49'082'368);
  EXPECT_EQ(census.kv_bytes_per_token, 6144);
  EXPECT_EQ(census.peak.mamba_in_proj, 10304);
  EXPECT_EQ(census.peak.mamba_conv, 6144);
  EXPECT_EQ(census.layers, (std::array<int64_t, 4>{23, 6, 0, 23}));
  const auto decode = [&](TensorPart part) {
    return GigaBytes(census.part(part).decode_bytes);
  };
  EXPECT_NEAR(decode(TensorPart::kRoutedExperts), 2.75, 0.005);
  EXPECT_NEAR(decode(TensorPart::kMamba), 1.78, 0.005);
  EXPECT_NEAR(decode(TensorPart::kSharedExpert), 0.92, 0.005);
  EXPECT_NEAR(decode(TensorPart::kHead), 0.70, 0.005);
  EXPECT_NEAR(decode(TensorPart::kAttention), 0.28, 0.005);
  EXPECT_EQ(census.part(TensorPart::kEmbedding).decode_bytes, 2688 * 2);
  // "30B-A3B", and 65.8 GB with the prediction head.
  EXPECT_NEAR(GigaBytes(census.model().parameters), 31.6, 0.05);
  EXPECT_NEAR(GigaBytes(census.model().active_parameters), 3.2, 0.05);
  EXPECT_NEAR(GigaBytes(census.total().bytes), 65.8, 0.05);
}

TEST(Census, MatchesSuper) {
  const Census census = TakeCensus(Super(), DType::kBF16);
  EXPECT_NEAR(static_cast<double>(census.state_bytes()), 170.2e6, 5e4);
  EXPECT_EQ(census.kv_bytes_per_token, 8192);
  EXPECT_EQ(census.peak.mamba_in_proj, 18560);
  EXPECT_EQ(census.peak.mamba_conv, 10240);
  EXPECT_EQ(census.peak.expert_input, 1024);
  EXPECT_EQ(census.layers, (std::array<int64_t, 4>{40, 8, 0, 40}));
  EXPECT_NEAR(GigaBytes(census.model().parameters), 120, 1);
  EXPECT_NEAR(GigaBytes(census.model().active_parameters), 12, 0.8);
}

// The numbers that the demo model's README states.
TEST(Census, CountsTheDemoModel) {
  auto checkpoint = Checkpoint::Open(TRUNKLINE_SOURCE_DIR "/models/demo");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const Census census = TakeCensus(**checkpoint);
  EXPECT_NEAR(static_cast<double>(census.total().parameters), 12.0e6, 5e4);
  EXPECT_NEAR(static_cast<double>(census.total().bytes), 24e6, 5e5);
  int64_t stored = 0;
  for (const TensorInfo& tensor : (*checkpoint)->tensors())
    stored += tensor.bytes;
  EXPECT_EQ(census.total().bytes, stored);
  EXPECT_GT(census.mtp.bytes, 0);
  EXPECT_EQ(census.mtp.decode_bytes, 0);
  // 4 mamba layers: 8 heads of 64 with 64 states, 3 rows of 768 channels.
  EXPECT_EQ(census.scan_state_bytes, 4 * 8 * 64 * 64 * 4);
  EXPECT_EQ(census.conv_state_bytes, 4 * 3 * 768 * 2);
  EXPECT_EQ(census.kv_bytes_per_token, 2 * 2 * 2 * 64 * 2);
}

TEST(Census, ATiedHeadReadsTheEmbedding) {
  ModelConfig config = Lightning();
  config.tie_word_embeddings = true;
  const Census census = TakeCensus(config, DType::kBF16);
  EXPECT_EQ(census.part(TensorPart::kHead).bytes, 0);
  EXPECT_EQ(census.part(TensorPart::kEmbedding).decode_bytes,
            int64_t{131072} * 2688 * 2);
}

TEST(Census, F32KeepsItsStateInF32) {
  const Census wide = TakeCensus(Lightning(), DType::kF32);
  const Census narrow = TakeCensus(Lightning(), DType::kBF16);
  EXPECT_EQ(wide.conv_state_bytes, 2 * narrow.conv_state_bytes);
  EXPECT_EQ(wide.scan_state_bytes, narrow.scan_state_bytes);
  EXPECT_EQ(wide.kv_bytes_per_token, 2 * narrow.kv_bytes_per_token);
}

// Sizes differ per layer: a sum over layers, not a product with the first.
TEST(Census, AddsUnevenLayers) {
  SmallModel model;
  model.pattern = "MEE";
  ModelConfig config = SmallConfig(model);
  config.layers[2].moe.experts = 4;
  config.layers[2].moe.top_k = 1;
  config.layers[2].moe.width = 8;
  const Census census = TakeCensus(config, DType::kBF16);
  const PartCensus& experts = census.part(TensorPart::kRoutedExperts);
  EXPECT_EQ(experts.parameters, 2 * 64 * (16 * 48 + 4 * 8));
  EXPECT_EQ(experts.active_parameters, 2 * 64 * (4 * 48 + 1 * 8));
  EXPECT_EQ(experts.decode_bytes, 2 * experts.active_parameters);
  EXPECT_EQ(census.peak.experts, 16);
  EXPECT_EQ(census.peak.expert, 48);
}

}  // namespace
}  // namespace trunkline::model
