// Acceptance "bad inputs", the part on disk: every broken checkpoint,
// configuration and tokenizer is refused by `trunkline inspect` and by a worker
// that should serve it, with an error that names the cause and exit code 1;
// never a crash.

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/integration/broken_checkpoint.h"
#include "tests/integration/child_process.h"

namespace trunkline::testing {
namespace {

using nlohmann::json;

struct Case {
  std::string name;
  std::function<void(const std::string& dir)> damage;
  std::vector<std::string> error_names;  // all of these stand in the message
};

Case Config(const std::string& name, std::function<void(json&)> edit,
            std::vector<std::string> error_names) {
  return {
      "config/" + name,
      [edit](const std::string& dir) { EditJson(dir + "/config.json", edit); },
      std::move(error_names)};
}

Case Header(const std::string& name, std::function<void(json&)> edit,
            std::vector<std::string> error_names) {
  return {"safetensors/" + name,
          [edit](const std::string& dir) {
            EditSafetensorsHeader(dir + "/model.safetensors", edit);
          },
          std::move(error_names)};
}

Case Tokenizer(const std::string& name, std::function<void(json&)> edit,
               std::vector<std::string> error_names) {
  return {"tokenizer/" + name,
          [edit](const std::string& dir) {
            EditJson(dir + "/tokenizer.json", edit);
          },
          std::move(error_names)};
}

const std::string kUp = "backbone.layers.1.mixer.experts.3.up_proj.weight";

std::vector<Case> Cases() {
  return {
      Config("unknown field", [](json& j) { j["hidden_sizes"] = 64; },
             {"hidden_sizes", "config.json"}),
      Config("unknown letter",
             [](json& j) { j["hybrid_override_pattern"] = "MEM*EMEX"; }, {"X"}),
      Config("wrong count", [](json& j) { j["num_hidden_layers"] = 9; },
             {"num_hidden_layers", "9", "8"}),
      Config("heads do not divide",
             [](json& j) { j["num_key_value_heads"] = 3; },
             {"num_key_value_heads", "3"}),
      Config("groups do not divide", [](json& j) { j["n_groups"] = 3; },
             {"n_groups", "3"}),
      Config("router groups", [](json& j) { j["n_group"] = 5; },
             {"n_group", "5"}),
      Config("top_k above experts",
             [](json& j) { j["num_experts_per_tok"] = 17; },
             {"num_experts_per_tok", "17"}),
      Config("negative size", [](json& j) { j["hidden_size"] = -64; },
             {"hidden_size", "-64"}),
      Config("wrong type", [](json& j) { j["hidden_size"] = "wide"; },
             {"hidden_size"}),
      Config("activation", [](json& j) { j["mlp_hidden_act"] = "gelu"; },
             {"mlp_hidden_act", "gelu"}),
      Config("bias", [](json& j) { j["attention_bias"] = true; },
             {"attention_bias"}),
      Config("architecture",
             [](json& j) { j["architectures"] = {"LlamaForCausalLM"}; },
             {"LlamaForCausalLM"}),
      Config("quantized",
             [](json& j) {
               j["quantization_config"] = {{"quant_method", "modelopt"}};
             },
             {"quantization_config"}),
      Config("hidden size against tensors",
             [](json& j) { j["hidden_size"] = 128; }, {"[", "expected"}),
      {"config/not json",
       [](const std::string& d) {
         WriteFile(d + "/config.json", "{\"hidden_size\": ");
       },
       {"config.json"}},
      {"config/missing",
       [](const std::string& d) { std::remove((d + "/config.json").c_str()); },
       {"config.json"}},
      {"config/too deep",
       [](const std::string& d) {
         WriteFile(d + "/config.json", std::string(200000, '['));
       },
       {"config.json"}},

      Config("a layer without tensors",
             [](json& j) {
               j["hybrid_override_pattern"] = "MEM*EMEM-";
               j["num_hidden_layers"] = 9;
             },
             {"layers.8.", "missing"}),
      Header("bytes that belong to no tensor", [](json& j) { j.erase(kUp); },
             {"belong to no tensor"}),
      Header("surplus tensor",
             [](json& j) { j["backbone.layers.0.mixer.extra"] = j[kUp]; },
             {"extra"}),
      Header("misshapen tensor",
             [](json& j) {
               j[kUp]["shape"] = {64, 48};
             },
             {"experts.3.up_proj.weight", "[48, 64]", "[64, 48]"}),
      Header("wrong dtype", [](json& j) { j[kUp]["dtype"] = "I32"; },
             {"experts.3.up_proj.weight", "I32"}),
      Header("offsets beyond the file",
             [](json& j) {
               j[kUp]["data_offsets"] = {1 << 30, (1 << 30) + 12288};
             },
             {"experts.3.up_proj.weight"}),
      Header("overlap",
             [](json& j) {
               j[kUp]["data_offsets"] =
                   j["backbone.layers.1.mixer.experts.4.up_proj.weight"]
                    ["data_offsets"];
             },
             {"experts."}),
      Header("offsets against shape",
             [](json& j) {
               const auto offsets = j[kUp]["data_offsets"];
               j[kUp]["data_offsets"] = {offsets[0],
                                         offsets[1].get<int64_t>() - 4};
             },
             {"experts.3.up_proj.weight"}),
      Header("negative shape",
             [](json& j) {
               j[kUp]["shape"] = {-48, -64};
             },
             {"experts.3.up_proj.weight"}),
      {"safetensors/truncated",
       [](const std::string& d) { Truncate(d + "/model.safetensors", 0.7); },
       {"model.safetensors"}},
      {"safetensors/empty",
       [](const std::string& d) { WriteFile(d + "/model.safetensors", ""); },
       {"model.safetensors"}},
      {"safetensors/header length lies",
       [](const std::string& d) {
         WriteFile(d + "/model.safetensors",
                   std::string("\xff\xff\xff\xff\xff\xff\x00\x00{}", 10));
       },
       {"model.safetensors"}},
      {"safetensors/index names a missing shard",
       [](const std::string& d) {
         WriteFile(
             d + "/model.safetensors.index.json",
             R"({"metadata":{},"weight_map":{"backbone.norm_f.weight":"model-00001-of-00002.safetensors"}})");
         Truncate(d + "/model.safetensors", 0.0);
         std::remove((d + "/model.safetensors").c_str());
       },
       {"model-00001-of-00002.safetensors"}},
      {"safetensors/missing",
       [](const std::string& d) {
         std::remove((d + "/model.safetensors").c_str());
       },
       {"model.safetensors"}},

      Tokenizer("wordpiece", [](json& j) { j["model"]["type"] = "WordPiece"; },
                {"tokenizer.json", "WordPiece"}),
      Tokenizer("normalizer",
                [](json& j) {
                  j["normalizer"] = {{"type", "BertNormalizer"}};
                },
                {"BertNormalizer"}),
      Tokenizer("pre-tokenizer",
                [](json& j) {
                  j["pre_tokenizer"] = {{"type", "Whitespace"}};
                },
                {"Whitespace"}),
      Tokenizer("pattern",
                [](json& j) {
                  j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] =
                      "(unclosed";
                },
                {"tokenizer.json"}),
      Tokenizer("merge of unknown parts",
                [](json& j) { j["model"]["merges"].push_back("qqqq zzzz"); },
                {"qqqq"}),
      Tokenizer("byte fallback",
                [](json& j) { j["model"]["byte_fallback"] = true; },
                {"byte_fallback"}),
      {"tokenizer/not json",
       [](const std::string& d) {
         WriteFile(d + "/tokenizer.json", "nonsense");
       },
       {"tokenizer.json"}},
  };
}

TEST(BadCheckpoint, EveryBrokenOneIsRefusedByName) {
  TempDir dir;
  int number = 0;
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    const std::string path = dir.path() + "/" + std::to_string(number++);
    CopyCheckpoint(std::string(TRUNKLINE_FIXTURES) + "/checkpoints/tiny", path);
    c.damage(path);
    const RunResult run = RunProgram({TRUNKLINE_BINARY, "inspect", path},
                                     std::chrono::seconds(20));
    EXPECT_EQ(run.signal, 0) << run.err;
    EXPECT_EQ(run.exit_code, 1) << run.out << run.err;
    for (const std::string& part : c.error_names) {
      EXPECT_NE(run.err.find(part), std::string::npos)
          << "the message does not name \"" << part << "\": " << run.err;
    }
  }
}

TEST(BadCheckpoint, TheUndamagedCopyIsAccepted) {
  TempDir dir;
  const std::string path = dir.path() + "/good";
  CopyCheckpoint(std::string(TRUNKLINE_FIXTURES) + "/checkpoints/tiny", path);
  const RunResult run =
      RunProgram({TRUNKLINE_BINARY, "inspect", path}, std::chrono::seconds(20));
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_NE(run.out.find("MEM*EMEM"), std::string::npos) << run.out;
}

TEST(BadFlags, EachIsRefusedWithExitCodeTwoAndItsName) {
  const std::string model =
      std::string(TRUNKLINE_FIXTURES) + "/checkpoints/tiny";
  struct FlagCase {
    std::vector<std::string> arguments;
    std::string names;
  };
  const std::vector<FlagCase> cases = {
      {{"frobnicate"}, "frobnicate"},
      {{"inspect"}, "DIR"},
      {{"coordinator", "--lease", "-1s"}, "--lease"},
      {{"coordinator", "--expert-workers", "0"}, "--expert-workers"},
      {{"coordinator", "--expert-workers", "2", "--replicas", "3"},
       "--replicas"},
      {{"trunk-worker", "--model", model, "--threads", "0"}, "--threads"},
      {{"trunk-worker", "--model", model, "--transport", "carrier-pigeon"},
       "carrier-pigeon"},
      {{"trunk-worker", "--model", model, "--simd", "mmx"}, "mmx"},
      {{"trunk-worker", "--model", model, "--numerics", "fp8"}, "--numerics"},
      {{"coordinator", "--numerics", "exact"}, "--numerics"},
      {{"expert-worker", "--model", model}, "--coordinator"},
      {{"expert-worker", "--coordinator", "127.0.0.1:1"}, "--model"},
      {{"generate", "--temperature", "-1", "x"}, "--temperature"},
      {{"generate", "--top-p", "1.5", "x"}, "--top-p"},
      {{"generate", "--max-tokens", "none", "x"}, "--max-tokens"},
      {{"up", "--model", model, "--experts", "0"}, "--experts"},
  };
  for (const FlagCase& c : cases) {
    std::vector<std::string> argv = {TRUNKLINE_BINARY};
    argv.insert(argv.end(), c.arguments.begin(), c.arguments.end());
    SCOPED_TRACE(::testing::PrintToString(c.arguments));
    const RunResult run = RunProgram(argv, std::chrono::seconds(20));
    EXPECT_EQ(run.exit_code, 2) << run.out << run.err;
    EXPECT_NE(run.err.find(c.names), std::string::npos) << run.err;
  }
}

}  // namespace
}  // namespace trunkline::testing
