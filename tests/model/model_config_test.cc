#include "model/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "model/config_json.h"
#include "model/semantic_text.h"
#include "tests/model/checkpoint_builder.h"

namespace trunkline::model {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// 3 Nano 30B, as its config.json spells it.
constexpr char kNanoPattern[] =
    "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME";
json NanoConfig() {
  return json::parse(R"({
    "architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h",
    "vocab_size": 131072, "hidden_size": 2688, "num_hidden_layers": 52,
    "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128,
    "mamba_num_heads": 64, "mamba_head_dim": 64, "ssm_state_size": 128,
    "n_groups": 8, "conv_kernel": 4, "chunk_size": 128, "expand": 2,
    "use_conv_bias": true, "use_bias": false, "mamba_proj_bias": false,
    "attention_bias": false, "mlp_bias": false, "mamba_hidden_act": "silu",
    "mlp_hidden_act": "relu2", "intermediate_size": 1856,
    "n_routed_experts": 128, "num_experts_per_tok": 6, "n_shared_experts": 1,
    "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712,
    "routed_scaling_factor": 2.5, "n_group": 1, "topk_group": 1,
    "norm_topk_prob": true, "layer_norm_epsilon": 1e-05, "norm_eps": 1e-05,
    "max_position_embeddings": 262144, "rope_theta": 10000,
    "partial_rotary_factor": 1.0, "rescale_prenorm_residual": true,
    "residual_in_fp32": false, "sliding_window": null, "num_logits_to_keep": 1,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    "torch_dtype": "bfloat16", "transformers_version": "4.55.4",
    "auto_map": {"AutoConfig": "configuration_nemotron_h.NemotronHConfig"}
  })");
}

json Nano() {
  json config = NanoConfig();
  config["hybrid_override_pattern"] = kNanoPattern;
  return config;
}

// Puzzle: sizes live per block.
json Puzzle() {
  json config = NanoConfig();
  config["architectures"] = {"NemotronHPuzzleForCausalLM"};
  config["model_type"] = "nemotron_h_puzzle";
  config["num_hidden_layers"] = nullptr;
  for (const char* name :
       {"n_routed_experts", "num_experts_per_tok", "moe_intermediate_size",
        "moe_shared_expert_intermediate_size", "intermediate_size"}) {
    config.erase(name);
  }
  config["blockwise_members"] = {"block_type",
                                 "sliding_window",
                                 "n_routed_experts",
                                 "num_experts_per_tok",
                                 "moe_intermediate_size",
                                 "moe_latent_size",
                                 "moe_shared_expert_intermediate_size"};
  config["block_configs"] = json::parse(R"([
    {"block_type": "mamba"},
    {"block_type": "moe", "n_routed_experts": 512, "num_experts_per_tok": 4,
     "moe_intermediate_size": 1280, "moe_latent_size": 1024,
     "moe_shared_expert_intermediate_size": 5376},
    {"block_type": "attention", "sliding_window": 8192},
    {"block_type": "moe", "n_routed_experts": 256, "num_experts_per_tok": 18,
     "moe_intermediate_size": 2688, "moe_latent_size": 1024,
     "moe_shared_expert_intermediate_size": 5376}
  ])");
  return config;
}

absl::StatusOr<ModelConfig> Parse(const json& config) {
  return ParseModelConfig(config.dump(), "dir/config.json");
}

ModelConfig ParseOk(const json& config) {
  auto parsed = Parse(config);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.ok() ? *parsed : ModelConfig();
}

// Section 1.4 and 2.1 give these numbers for the released model.
TEST(ModelConfig, ReadsNanosShapes) {
  const ModelConfig config = ParseOk(Nano());
  EXPECT_EQ(config.LayerPattern(), kNanoPattern);
  ASSERT_EQ(config.layers.size(), 52u);
  EXPECT_EQ(config.MoeLayers().size(), 23u);
  const MambaShape& mamba = config.layers[0].mamba;
  EXPECT_EQ(mamba.inner(), 4096);
  EXPECT_EQ(mamba.conv_dim(), 6144);
  EXPECT_EQ(mamba.in_proj_rows(), 10304);
  const MoeShape& moe = config.layers[1].moe;
  EXPECT_EQ(moe.experts, 128);
  EXPECT_EQ(moe.top_k, 6);
  EXPECT_EQ(moe.shared_width, 3712);
  EXPECT_EQ(moe.expert_input(config.hidden_size), 2688);
  EXPECT_EQ(moe.scale, 2.5f);
  EXPECT_EQ(config.layers[5].attention.kv_heads, 2);
  EXPECT_EQ(config.norm_eps, 1e-5f);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(2));
  EXPECT_TRUE(config.mtp_layers.empty());
}

TEST(ModelConfig, ReadsEverySpellingOfTheLayerTable) {
  json names = NanoConfig(), new_names = NanoConfig();
  for (const char letter : std::string(kNanoPattern)) {
    const bool mamba = letter == 'M', moe = letter == 'E';
    names["layers_block_type"].push_back(mamba ? "mamba"
                                         : moe ? "moe"
                                               : "attention");
    new_names["layers_block_type"].push_back(mamba ? "linear_attention"
                                             : moe ? "moe"
                                                   : "full_attention");
  }
  json blocks = NanoConfig();
  for (const json& name : names["layers_block_type"])
    blocks["block_configs"].push_back({{"block_type", name}});
  const std::string expected = SemanticConfigText(ParseOk(Nano()));
  EXPECT_EQ(SemanticConfigText(ParseOk(names)), expected);
  EXPECT_EQ(SemanticConfigText(ParseOk(new_names)), expected);
  EXPECT_EQ(SemanticConfigText(ParseOk(blocks)), expected);
}

TEST(ModelConfig, LayerNamesWinOverThePattern) {
  json config = Nano();
  config.erase("num_hidden_layers");
  config["layers_block_type"] = {"mamba", "moe"};
  EXPECT_EQ(ParseOk(config).LayerPattern(), "ME");
}

TEST(ModelConfig, TakesPerBlockSizes) {
  const ModelConfig config = ParseOk(Puzzle());
  EXPECT_EQ(config.LayerPattern(), "ME*E");
  EXPECT_EQ(config.layers[1].moe.top_k, 4);
  EXPECT_EQ(config.layers[1].moe.width, 1280);
  EXPECT_EQ(config.layers[2].attention.window, 8192);
  EXPECT_EQ(config.layers[3].moe.experts, 256);
  EXPECT_EQ(config.layers[3].moe.top_k, 18);
  EXPECT_EQ(config.layers[3].moe.latent, 1024);
}

TEST(ModelConfig, ABlockFallsBackToTheGlobal) {
  json config = Nano();
  config.erase("hybrid_override_pattern");
  config["num_hidden_layers"] = 2;
  config["block_configs"] = json::parse(
      R"([{"block_type": "moe", "num_experts_per_tok": 3, "moe_latent_size": null}, {"block_type": "mlp"}])");
  const ModelConfig parsed = ParseOk(config);
  EXPECT_EQ(parsed.layers[0].moe.top_k, 3);
  EXPECT_EQ(parsed.layers[0].moe.experts, 128);
  EXPECT_EQ(parsed.layers[0].moe.latent, 0);
  EXPECT_EQ(parsed.layers[1].mlp.width, 1856);
}

TEST(ModelConfig, ReadsThePredictionHeadInEverySpelling) {
  json config = Nano();
  config["num_nextn_predict_layers"] = 1;
  const auto pattern_of = [](const ModelConfig& parsed) {
    std::string pattern;
    for (const LayerSpec& layer : parsed.mtp_layers)
      pattern += LayerKindLetter(layer.kind);
    return pattern;
  };
  EXPECT_EQ(pattern_of(ParseOk(config)), "*E");  // the family's default
  config["mtp_hybrid_override_pattern"] = "*E*E";
  EXPECT_EQ(pattern_of(ParseOk(config)), "*E*E");
  config["mtp_layers_block_type"] = {"full_attention", "moe"};
  EXPECT_EQ(pattern_of(ParseOk(config)), "*E");
  json puzzle = Puzzle();
  puzzle["num_nextn_predict_layers"] = 1;
  puzzle["mtp_block_configs"] = json::parse(R"([
    {"block_type": "attention"},
    {"block_type": "moe", "n_routed_experts": 512, "num_experts_per_tok": 22,
     "moe_intermediate_size": 2688, "moe_latent_size": 1024,
     "moe_shared_expert_intermediate_size": 5376}])");
  const ModelConfig parsed = ParseOk(puzzle);
  ASSERT_EQ(parsed.mtp_layers.size(), 2u);
  EXPECT_EQ(parsed.mtp_layers[1].moe.top_k, 22);
  config["num_nextn_predict_layers"] = 0;
  EXPECT_TRUE(ParseOk(config).mtp_layers.empty());
}

TEST(ModelConfig, FindsTheTextConfigInsideAWrapper) {
  for (const char* inner : {"llm_config", "text_config"}) {
    json wrapper = json::parse(R"({
      "architectures": ["NemotronH_Nano_Omni_Reasoning_V3"],
      "model_type": "NemotronH_Nano_Omni_Reasoning_V3",
      "vision_config": {"hidden_size": 1280, "depth": {"x": 1}},
      "sound_config": {}, "force_image_size": 512, "downsample_ratio": 0.5,
      "img_context_token_id": 18, "video_pruning_rate": 0.7,
      "eos_token_id": [2, 11]})");
    wrapper[inner] = Nano();
    wrapper[inner].erase("eos_token_id");
    const ModelConfig config = ParseOk(wrapper);
    EXPECT_TRUE(config.wrapped);
    EXPECT_EQ(config.architecture, "NemotronH_Nano_Omni_Reasoning_V3");
    EXPECT_EQ(config.LayerPattern(), kNanoPattern);
    EXPECT_THAT(config.eos_token_ids, ElementsAre(2, 11));
  }
}

TEST(ModelConfig, TakesPythonsLiterals) {
  std::string text = Nano().dump();
  text.insert(1, R"("time_step_limit": [0.0, Infinity], )");
  auto config = ParseModelConfig(text, "config.json");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->layers[0].mamba.dt_min, 0.0f);
  EXPECT_EQ(config->layers[0].mamba.dt_max, std::numeric_limits<float>::max());
  // transformers 5 spells the same value as an object.
  text = Nano().dump();
  text.insert(1, R"("time_step_limit": [0.0, {"__float__": "Infinity"}], )");
  config = ParseModelConfig(text, "config.json");
  ASSERT_TRUE(config.ok()) << config.status();
  // Inside a string the word is only a word.
  text = Nano().dump();
  text.insert(1, R"("_name_or_path": "NaN-Infinity", )");
  EXPECT_TRUE(ParseModelConfig(text, "config.json").ok());
}

TEST(ModelConfig, AppliesAFiniteTimeStepLimit) {
  json config = Nano();
  config["time_step_limit"] = {0.001, 0.5};
  const MambaShape mamba = ParseOk(config).layers[0].mamba;
  EXPECT_EQ(mamba.dt_min, 0.001f);
  EXPECT_EQ(mamba.dt_max, 0.5f);
}

TEST(ModelConfig, LegacyNamesWinAndOtherSpellingsAreRead) {
  json config = Nano();
  config["mamba_n_groups"] = 4;
  config["mamba_d_conv"] = 3;
  config["mamba_conv_bias"] = false;
  config["mamba_dt_limit"] = {0.0, 1.0};
  config.erase("head_dim");
  config["attention_head_dim"] = 64;
  config.erase("ssm_state_size");
  config["mamba_state_dim"] = 96;
  config.erase("layer_norm_epsilon");
  config.erase("norm_eps");
  config["rms_norm_eps"] = 1e-6;
  const ModelConfig parsed = ParseOk(config);
  EXPECT_EQ(parsed.layers[0].mamba.groups, 4);
  EXPECT_EQ(parsed.layers[0].mamba.conv_kernel, 3);
  EXPECT_FALSE(parsed.layers[0].mamba.conv_bias);
  EXPECT_EQ(parsed.layers[0].mamba.dt_max, 1.0f);
  EXPECT_EQ(parsed.layers[0].mamba.state_size, 96);
  EXPECT_EQ(parsed.layers[5].attention.head_dim, 64);
  EXPECT_EQ(parsed.norm_eps, 1e-6f);
}

TEST(ModelConfig, NullCountsAsAbsent) {
  json config = Nano();
  config["layers_block_type"] = nullptr;
  config["moe_latent_size"] = nullptr;
  config["block_configs"] = nullptr;
  config["quantization_config"] = nullptr;
  config["some_future_field"] = nullptr;
  config["conv_kernel"] = nullptr;  // its default
  EXPECT_EQ(ParseOk(config).layers[0].mamba.conv_kernel, 4);
}

TEST(ModelConfig, GivesEachDenseLayerItsWidth) {
  json config = Nano();
  config["hybrid_override_pattern"] = "M-M-";
  config["num_hidden_layers"] = 4;
  config["intermediate_size"] = {100, 200};
  ModelConfig parsed = ParseOk(config);
  EXPECT_EQ(parsed.layers[1].mlp.width, 100);
  EXPECT_EQ(parsed.layers[3].mlp.width, 200);
  config["intermediate_size"] = {300};
  EXPECT_EQ(ParseOk(config).layers[3].mlp.width, 300);
}

TEST(ModelConfig, SharedExpertsMultiplyTheWidth) {
  json config = Nano();
  config["n_shared_experts"] = 2;
  EXPECT_EQ(ParseOk(config).layers[1].moe.shared_width, 7424);
  config["n_shared_experts"] = 0;
  EXPECT_EQ(ParseOk(config).layers[1].moe.shared_width, 0);
}

// ConfigJson is the inverse for every table that a spelling can say.
TEST(ModelConfig, SurvivesBeingWrittenAndRead) {
  SmallModel model;
  model.pattern = "M-E*EM";
  model.mtp_pattern = "*E";
  model.moe.latent = 32;
  model.moe.n_group = 4;
  model.moe.topk_group = 2;
  model.mamba.dt_max = 0.25f;
  for (const bool wrapped : {false, true}) {
    for (const auto spelling :
         {LayerTableSpelling::kPattern, LayerTableSpelling::kNames,
          LayerTableSpelling::kNamesNew, LayerTableSpelling::kBlocks}) {
      ModelConfig config = SmallConfig(model);
      config.wrapped = wrapped;
      auto text = ConfigJson(config, DType::kBF16, spelling);
      ASSERT_TRUE(text.ok()) << text.status();
      auto read = ParseModelConfig(*text, "config.json");
      ASSERT_TRUE(read.ok()) << read.status();
      EXPECT_EQ(SemanticConfigText(*read), SemanticConfigText(config));
      EXPECT_EQ(read->wrapped, wrapped);
    }
  }
}

TEST(ModelConfig, AUniformSpellingCanNotSayUnevenExperts) {
  ModelConfig config = SmallConfig(SmallModel());
  config.layers[1].moe.top_k = 2;
  EXPECT_TRUE(
      ConfigJson(config, DType::kF32, LayerTableSpelling::kBlocks).ok());
  EXPECT_EQ(ConfigJson(config, DType::kF32, LayerTableSpelling::kPattern)
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(GenerationConfig, ReadsDefaults) {
  auto defaults = ParseGenerationConfig(
      R"({"eos_token_id": [2, 11], "do_sample": true, "temperature": 0.6,
          "top_p": 0.95, "top_k": 40, "bos_token_id": 1, "pad_token_id": 0,
          "_from_model_config": true, "transformers_version": "4.55.4"})",
      "generation_config.json");
  ASSERT_TRUE(defaults.ok()) << defaults.status();
  EXPECT_THAT(defaults->eos_token_ids, ElementsAre(2, 11));
  EXPECT_TRUE(defaults->do_sample);
  EXPECT_EQ(defaults->temperature, 0.6f);
  EXPECT_EQ(defaults->top_p, 0.95f);
  EXPECT_EQ(defaults->top_k, 40);
}

TEST(GenerationConfig, NamesWhatItCanNotApply) {
  EXPECT_THAT(ParseGenerationConfig(R"({"repetition_penalty": 1.1})", "g.json")
                  .status()
                  .ToString(),
              HasSubstr("UNIMPLEMENTED: g.json: repetition_penalty is 1.1"));
  EXPECT_THAT(
      ParseGenerationConfig(R"({"top_p": 1.5})", "g.json").status().ToString(),
      HasSubstr("top_p is 1.5"));
  EXPECT_THAT(ParseGenerationConfig(R"({"eos_token_id": [2, "x"]})", "g.json")
                  .status()
                  .ToString(),
              HasSubstr("eos_token_id[1] is \"x\""));
}

}  // namespace
}  // namespace trunkline::model
