// Every way a config.json can be wrong, each with what its error must say.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/model_config.h"
#include "tests/model/checkpoint_builder.h"

namespace trunkline::model {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

struct BadConfig {
  const char* name;
  std::function<void(json&)> break_it;
  absl::StatusCode code;
  std::vector<std::string> says;
};

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kUnimplemented = absl::StatusCode::kUnimplemented;

void UseBlocks(json& c, const char* blocks) {
  c.erase("hybrid_override_pattern");
  c.erase("num_hidden_layers");
  c["block_configs"] = json::parse(blocks);
}

const std::vector<BadConfig>& BadConfigs() {
  static const auto* const configs = new std::vector<BadConfig>{
      {"UnknownField",
       [](json& c) { c["attention_sinks"] = 4; },
       kInvalid,
       {"unknown field attention_sinks = 4"}},
      {"UnknownLetter",
       [](json& c) { c["hybrid_override_pattern"] = "MEX*EMEM"; },
       kInvalid,
       {"hybrid_override_pattern", "\"X\"", "position 2"}},
      {"UnknownLayerType",
       [](json& c) {
         c["layers_block_type"] = {"mamba", "rwkv"};
       },
       kInvalid,
       {"layers_block_type[1]", "\"rwkv\"", "linear_attention"}},
      {"LayerTypesNoList",
       [](json& c) { c["layers_block_type"] = "mamba"; },
       kInvalid,
       {"layers_block_type", "a list"}},
      {"NoLayerTable",
       [](json& c) { c.erase("hybrid_override_pattern"); },
       kInvalid,
       {"no layer table", "hybrid_override_pattern"}},
      {"EmptyPattern",
       [](json& c) {
         c["hybrid_override_pattern"] = "";
         c["num_hidden_layers"] = 0;
       },
       kInvalid,
       {"layer table is empty"}},
      {"LayerCount",
       [](json& c) { c["num_hidden_layers"] = 9; },
       kInvalid,
       {"num_hidden_layers is 9", "lists 8"}},
      {"NoHiddenSize",
       [](json& c) { c.erase("hidden_size"); },
       kInvalid,
       {"hidden_size is missing"}},
      {"NullVocabulary",
       [](json& c) { c["vocab_size"] = nullptr; },
       kInvalid,
       {"vocab_size is missing"}},
      {"TextForNumber",
       [](json& c) { c["hidden_size"] = "64"; },
       kInvalid,
       {"hidden_size is \"64\"", "an integer in 1.."}},
      {"FractionForInteger",
       [](json& c) { c["head_dim"] = 16.5; },
       kInvalid,
       {"head_dim is 16.5"}},
      {"NegativeSize",
       [](json& c) { c["conv_kernel"] = -4; },
       kInvalid,
       {"conv_kernel is -4"}},
      {"HugeSize",
       [](json& c) { c["hidden_size"] = 18446744073709551615ull; },
       kInvalid,
       {"hidden_size is 18446744073709551615"}},
      {"NumberForFlag",
       [](json& c) { c["use_conv_bias"] = 1; },
       kInvalid,
       {"use_conv_bias is 1", "true or false"}},
      {"ZeroHeads",
       [](json& c) { c["mamba_num_heads"] = 0; },
       kInvalid,
       {"layer 0 (mamba)", "mamba_num_heads is 0"}},
      {"MambaGroups",
       [](json& c) { c["n_groups"] = 3; },
       kInvalid,
       {"layer 0 (mamba)", "8 is not divisible by n_groups 3"}},
      {"KvHeads",
       [](json& c) { c["num_key_value_heads"] = 3; },
       kInvalid,
       {"layer 3 (attention)", "4 is not divisible by num_key_value_heads 3"}},
      {"TopKAboveExperts",
       [](json& c) { c["num_experts_per_tok"] = 17; },
       kInvalid,
       {"layer 1 (moe)", "num_experts_per_tok 17", "16"}},
      {"ZeroTopK",
       [](json& c) { c["num_experts_per_tok"] = 0; },
       kInvalid,
       {"num_experts_per_tok is 0"}},
      {"RouterGroups",
       [](json& c) { c["n_group"] = 3; },
       kInvalid,
       {"n_routed_experts 16 is not divisible by n_group 3"}},
      {"KeptGroups",
       [](json& c) {
         c["n_group"] = 2;
         c["topk_group"] = 3;
       },
       kInvalid,
       {"topk_group 3 is above n_group 2"}},
      {"SingleExpertGroups",
       [](json& c) {
         c["n_group"] = 16;
         c["topk_group"] = 8;
       },
       kInvalid,
       {"n_group 16", "best two"}},
      {"TopKAboveKeptGroups",
       [](json& c) {
         c["n_group"] = 8;
         c["topk_group"] = 1;
       },
       kInvalid,
       {"num_experts_per_tok 4 is above the 2 experts"}},
      {"ScalingFactor",
       [](json& c) { c["routed_scaling_factor"] = 0; },
       kInvalid,
       {"routed_scaling_factor is 0"}},
      {"EpsilonsDiffer",
       [](json& c) { c["norm_eps"] = 1e-6; },
       kInvalid,
       {"layer_norm_epsilon", "norm_eps", "another spelling"}},
      {"ThirdEpsilonDiffers",
       [](json& c) { c["rms_norm_eps"] = 1e-6; },
       kInvalid,
       {"rms_norm_eps", "another spelling"}},
      {"EpsilonZero",
       [](json& c) { c["layer_norm_epsilon"] = 0; },
       kInvalid,
       {"layer_norm_epsilon is 0"}},
      {"HeadDimsDiffer",
       [](json& c) { c["attention_head_dim"] = 32; },
       kInvalid,
       {"head_dim is 16", "attention_head_dim", "32"}},
      {"StateSizesDiffer",
       [](json& c) { c["mamba_state_dim"] = 32; },
       kInvalid,
       {"ssm_state_size", "mamba_state_dim"}},
      {"TimeStepLimitShort",
       [](json& c) { c["time_step_limit"] = {0.1}; },
       kInvalid,
       {"time_step_limit is [0.1]", "two numbers"}},
      {"TimeStepLimitReversed",
       [](json& c) {
         c["time_step_limit"] = {0.5, 0.1};
       },
       kInvalid,
       {"time_step_limit is [0.5,0.1]"}},
      {"TimeStepLimitHalfOpen",
       [](json& c) {
         c["time_step_limit"] = {0.001, {{"__float__", "Infinity"}}};
       },
       kUnimplemented,
       {"time_step_limit", "lower bound"}},
      {"Bias",
       [](json& c) { c["use_bias"] = true; },
       kUnimplemented,
       {"use_bias is true"}},
      {"AttentionBias",
       [](json& c) { c["attention_bias"] = true; },
       kUnimplemented,
       {"attention_bias is true"}},
      {"MlpBias",
       [](json& c) { c["mlp_bias"] = true; },
       kUnimplemented,
       {"mlp_bias is true"}},
      {"MambaBias",
       [](json& c) { c["mamba_proj_bias"] = true; },
       kUnimplemented,
       {"mamba_proj_bias is true"}},
      {"ResidualInFp32",
       [](json& c) { c["residual_in_fp32"] = true; },
       kUnimplemented,
       {"residual_in_fp32 is true"}},
      {"MlpActivation",
       [](json& c) { c["mlp_hidden_act"] = "silu"; },
       kUnimplemented,
       {"mlp_hidden_act is \"silu\"", "relu2"}},
      {"MambaActivation",
       [](json& c) { c["mamba_hidden_act"] = "gelu"; },
       kUnimplemented,
       {"mamba_hidden_act is \"gelu\"", "silu"}},
      {"CacheType",
       [](json& c) { c["mamba_ssm_cache_dtype"] = "float16"; },
       kUnimplemented,
       {"mamba_ssm_cache_dtype is \"float16\""}},
      {"Quantised",
       [](json& c) {
         c["quantization_config"] = {{"quant_method", "modelopt"},
                                     {"quant_algo", "NVFP4"}};
       },
       kUnimplemented,
       {"quantization_config", "NVFP4"}},
      {"QuantisedByMethod",
       [](json& c) {
         c["quantization_config"] = {{"quant_method", "exl3"}, {"bits", 4}};
       },
       kUnimplemented,
       {"exl3"}},
      {"AnotherFamily",
       [](json& c) { c["model_type"] = "llama"; },
       kUnimplemented,
       {"\"llama\"", "NemotronH"}},
      {"AnotherArchitecture",
       [](json& c) { c["architectures"] = {"MambaForCausalLM"}; },
       kUnimplemented,
       {"\"MambaForCausalLM\""}},
      {"NoIdentity",
       [](json& c) {
         c.erase("architectures");
         c.erase("model_type");
       },
       kInvalid,
       {"neither architectures nor model_type"}},
      {"ArchitecturesNoList",
       [](json& c) { c["architectures"] = "Nemotron"; },
       kInvalid,
       {"architectures is \"Nemotron\""}},
      {"EosOutsideVocabulary",
       [](json& c) {
         c["eos_token_id"] = {2, 512};
       },
       kInvalid,
       {"eos_token_id[1] is 512", "0..511"}},
      {"PredictionDepth",
       [](json& c) { c["num_nextn_predict_layers"] = 2; },
       kUnimplemented,
       {"num_nextn_predict_layers is 2"}},
      {"PredictionLetter",
       [](json& c) {
         c["num_nextn_predict_layers"] = 1;
         c["mtp_hybrid_override_pattern"] = "*Q";
       },
       kInvalid,
       {"mtp_hybrid_override_pattern", "\"Q\""}},
      {"UnknownBlockType",
       [](json& c) { UseBlocks(c, R"([{"block_type": "conv"}])"); },
       kInvalid,
       {"block_configs[0].block_type", "\"conv\""}},
      {"NoBlockType",
       [](json& c) { UseBlocks(c, R"([{"block_type": "mamba"}, {}])"); },
       kInvalid,
       {"block_configs[1].block_type"}},
      {"UnknownBlockField",
       [](json& c) {
         UseBlocks(c, R"([{"block_type": "moe", "experts": 4}])");
       },
       kInvalid,
       {"unknown field block_configs[0].experts"}},
      {"ForeignBlockField",
       [](json& c) {
         UseBlocks(c, R"([{"block_type": "mamba", "intermediate_size": 4}])");
       },
       kInvalid,
       {"block_configs[0].intermediate_size", "mamba"}},
      {"BlockNoObject",
       [](json& c) { UseBlocks(c, R"([7])"); },
       kInvalid,
       {"block_configs[0] is 7", "an object"}},
      {"BlocksNoList",
       [](json& c) { UseBlocks(c, R"({"a": 1})"); },
       kInvalid,
       {"block_configs", "a list"}},
      {"BlockwiseMemberMissing",
       [](json& c) {
         UseBlocks(c, R"([{"block_type": "moe", "n_routed_experts": 4}])");
         c.erase("num_experts_per_tok");
         c["blockwise_members"] = {"num_experts_per_tok"};
       },
       kInvalid,
       {"block_configs[0].num_experts_per_tok is missing"}},
      {"BlockwiseMemberUnknown",
       [](json& c) {
         UseBlocks(c, R"([{"block_type": "mamba"}])");
         c["blockwise_members"] = {"rope_theta"};
       },
       kInvalid,
       {"blockwise_members", "\"rope_theta\""}},
      {"BlocksAgainstNames",
       [](json& c) {
         UseBlocks(c, R"([{"block_type": "mamba"}, {"block_type": "moe"}])");
         c["layers_block_type"] = {"mamba", "attention"};
       },
       kInvalid,
       {"block_configs says layer 1 is moe", "attention"}},
      {"BlockTopK",
       [](json& c) {
         UseBlocks(
             c,
             R"([{"block_type": "moe", "n_routed_experts": 4, "num_experts_per_tok": 5}])");
       },
       kInvalid,
       {"layer 0 (moe)", "num_experts_per_tok 5"}},
      {"DenseWidths",
       [](json& c) {
         c["hybrid_override_pattern"] = "M-M-M-*-";
         c["intermediate_size"] = {1, 2, 3};
       },
       kInvalid,
       {"intermediate_size lists 3 widths for 4 mlp layers"}},
      {"TwoInnerConfigs",
       [](json& c) {
         const json inner = c;
         c = {{"model_type", "nemotron_h_omni"},
              {"llm_config", inner},
              {"text_config", inner}};
       },
       kInvalid,
       {"llm_config and text_config"}},
      {"UnknownWrapperField",
       [](json& c) {
         const json inner = c;
         c = {{"model_type", "nemotron_h_omni"},
              {"llm_config", inner},
              {"adapter_scale", 2}};
       },
       kInvalid,
       {"unknown field adapter_scale = 2"}},
      {"UnknownInnerField",
       [](json& c) {
         json inner = c;
         inner["vision_config"] = json::object();
         c = {{"model_type", "nemotron_h_omni"}, {"llm_config", inner}};
       },
       kInvalid,
       {"unknown field llm_config.vision_config"}},
      {"InnerNoObject",
       [](json& c) {
         c = {{"model_type", "nemotron_h_omni"}, {"llm_config", 3}};
       },
       kInvalid,
       {"llm_config is 3", "an object"}},
      {"ExpertsWithoutEnd",
       [](json& c) {
         c["hybrid_override_pattern"] = std::string(64, 'E');
         c["num_hidden_layers"] = 64;
         c["n_routed_experts"] = 65536;
       },
       kInvalid,
       {"n_routed_experts sums up to 4194304"}},
  };
  return *configs;
}

class BadModelConfig : public ::testing::TestWithParam<BadConfig> {};

TEST_P(BadModelConfig, StopsTheLoadByName) {
  json config = json::parse(
      R"({"architectures": ["NemotronHForCausalLM"],
          "model_type": "nemotron_h", "hybrid_override_pattern": "MEM*EMEM",
          "num_hidden_layers": 8, "vocab_size": 512, "hidden_size": 64,
          "mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 16,
          "n_groups": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
          "head_dim": 16, "n_routed_experts": 16, "num_experts_per_tok": 4,
          "moe_intermediate_size": 48, "layer_norm_epsilon": 1e-05,
          "moe_shared_expert_intermediate_size": 96})");
  ASSERT_TRUE(ParseModelConfig(config.dump(), "c.json").ok());
  GetParam().break_it(config);
  const absl::Status status =
      ParseModelConfig(config.dump(), "dir/config.json").status();
  EXPECT_EQ(status.code(), GetParam().code) << status;
  EXPECT_THAT(status.ToString(), HasSubstr("dir/config.json: "));
  for (const std::string& text : GetParam().says)
    EXPECT_THAT(status.ToString(), HasSubstr(text));
}

INSTANTIATE_TEST_SUITE_P(Table, BadModelConfig,
                         ::testing::ValuesIn(BadConfigs()),
                         [](const ::testing::TestParamInfo<BadConfig>& bad) {
                           return std::string(bad.param.name);
                         });

// Text that is no JSON: the position is the one in the file, also behind
// Python's literals.
TEST(BadJson, NamesLineAndColumn) {
  struct Case {
    const char* text;
    const char* says;
  };
  for (const Case& c : {
           Case{"", "c.json:1:1"},
           Case{"{\"a\": 1,\n \"b\" 2}", "c.json:2:6"},
           Case{"{\"a\": Infinity,\n \"b\": NaN, \"c\": -Infinity, ?}",
                "c.json:2:28"},
           Case{"{\"a\": Infinit}", "c.json:1:7"},
           Case{"{\"a\": 1} x", "c.json:1:10"},
           Case{"{\"a\": \"open", "c.json:1:"},
           Case{"{\"a\": 1, \"a\": 2}", "\"a\" is given twice"},
           Case{"{\"\": 1, \"\": 2}", "\"\" is given twice"},
           Case{"{\"a\": 1e999}", "1e999"},
           Case{"{\"a\": \"\x7f\"}", "U+007F"},
           Case{"{\"a\": \"\\u007F\"}", "U+007F"},
           Case{"{\"a\": \"\xff\"}", "c.json:1:"},
           Case{"[1, 2]", "the file is [1,2], an object is expected"},
       }) {
    const absl::Status status = ParseModelConfig(c.text, "c.json").status();
    EXPECT_EQ(status.code(), kInvalid) << c.text;
    EXPECT_THAT(status.ToString(), HasSubstr(c.says)) << c.text;
  }
}

// A recursive parser or destructor would overflow the stack.
TEST(BadJson, DeepNestingIsAnError) {
  for (const char* open : {"[", "{\"a\":"}) {
    std::string text;
    for (int i = 0; i < 1'000'000; ++i) text += open;
    const absl::Status status = ParseModelConfig(text, "c.json").status();
    EXPECT_THAT(status.ToString(), HasSubstr("nested more than 64 levels"));
  }
}

TEST(BadJson, SizeIsLimited) {
  const std::string text(17 << 20, ' ');
  EXPECT_THAT(ParseModelConfig(text, "c.json").status().ToString(),
              HasSubstr("at most 16777216 are read"));
}

}  // namespace
}  // namespace trunkline::model
