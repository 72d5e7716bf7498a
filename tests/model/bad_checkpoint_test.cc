// Checkpoints with one fault each, and what the error must name.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/checkpoint.h"
#include "tests/model/checkpoint_builder.h"

namespace trunkline::model {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kUnimplemented = absl::StatusCode::kUnimplemented;
constexpr absl::StatusCode kNotFound = absl::StatusCode::kNotFound;

constexpr char kUp[] = "backbone.layers.1.mixer.experts.3.up_proj.weight";
constexpr char kInProj[] = "backbone.layers.0.mixer.in_proj.weight";

void Shrink(EditableTensor& tensor) {  // one row less
  tensor.data.resize(tensor.data.size() -
                     tensor.data.size() / static_cast<size_t>(tensor.shape[0]));
  --tensor.shape[0];
}

void Double(EditableTensor& tensor, const char* dtype) {
  tensor.dtype = dtype;
  tensor.data += tensor.data;
}

struct BadTensors {
  const char* name;
  std::function<void(EditableCheckpoint&)> break_it;
  std::vector<std::string> says;
};

const std::vector<BadTensors>& BadTensorTable() {
  static const auto* const table = new std::vector<BadTensors>{
      {"MissingNorm",
       [](auto& c) { c.tensors.erase("backbone.layers.3.norm.weight"); },
       {"missing tensor layers.3.norm.weight [64]"}},
      {"MissingEmbedding",
       [](auto& c) { c.tensors.erase("backbone.embeddings.weight"); },
       {"missing tensor embeddings.weight"}},
      {"MissingExpert",
       [](auto& c) { c.tensors.erase(kUp); },
       {"missing tensor layers.1.mixer.experts.3.up_proj.weight [48, 64]"}},
      {"MissingConvBias",
       [](auto& c) { c.tensors.erase("backbone.layers.0.mixer.conv1d.bias"); },
       {"missing tensor layers.0.mixer.conv1d.bias [192]"}},
      {"MissingPredictionHead",
       [](auto& c) { c.config["num_nextn_predict_layers"] = 1; },
       {"missing tensor mtp.layers.0.enorm.weight",
        "num_nextn_predict_layers"}},
      {"SurplusConvBias",
       [](auto& c) { c.config["use_conv_bias"] = false; },
       {"backbone.layers.0.mixer.conv1d.bias", "unexpected", "[192]"}},
      {"SurplusExpert",
       [](auto& c) {
         c.tensors["backbone.layers.1.mixer.experts.16.up_proj.weight"] =
             c.tensors[kUp];
       },
       {"backbone.layers.1.mixer.experts.16.up_proj.weight", "unexpected"}},
      {"SurplusPredictionHead",
       [](auto& c) {
         c.tensors["mtp.layers.0.enorm.weight"] =
             c.tensors["backbone.norm_f.weight"];
       },
       {"mtp.layers.0.enorm.weight", "unexpected"}},
      {"SurplusKvScale",
       [](auto& c) {
         c.tensors["backbone.layers.3.mixer.k_proj.k_scale"] = {
             "F32", {}, "abcd"};
       },
       {"backbone.layers.3.mixer.k_proj.k_scale", "unexpected", "[]"}},
      {"UnknownPrefix",
       [](auto& c) {
         c.tensors["adapter.layers.0.norm.weight"] =
             c.tensors["backbone.norm_f.weight"];
       },
       {"adapter.layers.0.norm.weight", "unexpected", "prefix"}},
      {"VisionOutsideAWrapper",
       [](auto& c) {
         c.tensors["vision_model.x"] = {"F32", {1}, "abcd"};
       },
       {"vision_model.x", "unexpected"}},
      {"BareNames",
       [](auto& c) {
         c.tensors["embeddings.weight"] =
             c.tensors["backbone.embeddings.weight"];
         c.tensors.erase("backbone.embeddings.weight");
       },
       {"missing tensor embeddings.weight", "embeddings.weight, which no"}},
      {"TwoPrefixes",
       [](auto& c) {
         c.tensors["model.norm_f.weight"] = c.tensors["backbone.norm_f.weight"];
       },
       {"model.norm_f.weight", "the same tensor as backbone.norm_f.weight"}},
      {"StackedAndSingle",
       [](auto& c) {
         EditableTensor stacked = c.tensors[kUp];
         stacked.shape.insert(stacked.shape.begin(), 1);
         c.tensors["backbone.layers.1.mixer.experts.up_proj"] = stacked;
       },
       {"backbone.layers.1.mixer.experts.up_proj", "unexpected"}},
      {"ShapeOfInProj",
       [](auto& c) { Shrink(c.tensors[kInProj]); },
       {kInProj, "shape [327, 64], expected [328, 64]"}},
      {"ShapeTransposed",
       [](auto& c) {
         std::swap(c.tensors[kUp].shape[0], c.tensors[kUp].shape[1]);
       },
       {kUp, "shape [64, 48], expected [48, 64]"}},
      {"ShapeOfRouter",
       [](auto& c) {
         Shrink(c.tensors["backbone.layers.1.mixer.gate.weight"]);
       },
       {"gate.weight", "shape [15, 64], expected [16, 64]"}},
      {"ShapeOfConv",
       [](auto& c) {
         c.tensors["backbone.layers.0.mixer.conv1d.weight"].shape = {192, 4};
       },
       {"conv1d.weight", "shape [192, 4], expected [192, 1, 4]"}},
      {"ConfigOfAnotherModel",
       [](auto& c) { c.config["moe_intermediate_size"] = 40; },
       {"layers.1.mixer.experts.0.up_proj.weight",
        "shape [48, 64], expected [40, 64]"}},
      {"LatentWithoutProjections",
       [](auto& c) { c.config["moe_latent_size"] = 64; },
       {"missing tensor layers.1.mixer.fc1_latent_proj.weight [64, 64]"}},
      {"ProjectionInF32",
       [](auto& c) { Double(c.tensors[kUp], "F32"); },
       {kUp, "dtype F32, expected BF16"}},
      {"ProjectionInF16",
       [](auto& c) { c.tensors[kUp].dtype = "F16"; },
       {kUp, "dtype F16, expected BF16"}},
      {"NormInF16",
       [](auto& c) { c.tensors["backbone.norm_f.weight"].dtype = "F16"; },
       {"backbone.norm_f.weight", "dtype F16, expected BF16 or F32"}},
      {"QuantisedProjection",
       [](auto& c) {
         c.tensors[kUp].dtype = "F8_E4M3";
         c.tensors[kUp].data.resize(48 * 64);
       },
       {kUp, "dtype \"F8_E4M3\" is not supported"}},
  };
  return *table;
}

SynthesisSpec SmallSpec() {
  SynthesisSpec spec;
  spec.config = SmallConfig(SmallModel());
  return spec;
}

class BadTensorTest : public ::testing::TestWithParam<BadTensors> {};

TEST_P(BadTensorTest, StopsTheLoadByName) {
  TempDirectory directory;
  EditableCheckpoint checkpoint =
      EditableCheckpoint::Read(BuildCheckpoint(SmallSpec(), directory));
  GetParam().break_it(checkpoint);
  const std::string path = directory.path() + "/broken";
  checkpoint.Write(path);
  const absl::Status status = Checkpoint::Open(path).status();
  EXPECT_EQ(status.code(), kInvalid) << status;
  EXPECT_THAT(status.ToString(), HasSubstr(path));
  for (const std::string& text : GetParam().says)
    EXPECT_THAT(status.ToString(), HasSubstr(text));
}

INSTANTIATE_TEST_SUITE_P(Table, BadTensorTest,
                         ::testing::ValuesIn(BadTensorTable()),
                         [](const ::testing::TestParamInfo<BadTensors>& bad) {
                           return std::string(bad.param.name);
                         });

// Faults of the directory: files missing, shards and index at odds.
struct BadDirectory {
  const char* name;
  bool sharded;
  std::function<void(const std::string&)> break_it;
  absl::StatusCode code;
  std::vector<std::string> says;
};

json ReadIndex(const std::string& path) {
  return json::parse(ReadFile(path + "/model.safetensors.index.json"));
}
void WriteIndex(const std::string& path, const json& index) {
  WriteFile(path + "/model.safetensors.index.json", index.dump());
}
void Remove(const std::string& path) { EXPECT_EQ(unlink(path.c_str()), 0); }

// The name of the shard that holds `tensor`.
std::string ShardOf(const json& index, const char* tensor) {
  return index["weight_map"][tensor].get<std::string>();
}

const std::vector<BadDirectory>& BadDirectoryTable() {
  static const auto* const table = new std::vector<BadDirectory>{
      {"NoConfig",
       false,
       [](const auto& p) { Remove(p + "/config.json"); },
       kNotFound,
       {"config.json"}},
      {"NoWeights",
       false,
       [](const auto& p) { Remove(p + "/model.safetensors"); },
       kNotFound,
       {"no model.safetensors and no model.safetensors.index.json"}},
      {"ConfigIsADirectory",
       false,
       [](const auto& p) {
         Remove(p + "/config.json");
         mkdir((p + "/config.json").c_str(), 0755);
       },
       kInvalid,
       {"config.json: not a regular file"}},
      {"BothForms",
       false,
       [](const auto& p) { WriteIndex(p, json::object()); },
       kInvalid,
       {"holds both"}},
      {"QuantConfigFile",
       false,
       [](const auto& p) {
         WriteFile(p + "/hf_quant_config.json",
                   R"({"quantization": {"quant_algo": "NVFP4"}})");
       },
       kUnimplemented,
       {"hf_quant_config.json", "NVFP4"}},
      {"GenerationConfigBroken",
       false,
       [](const auto& p) { WriteFile(p + "/generation_config.json", "{"); },
       kInvalid,
       {"generation_config.json:1:2"}},
      {"GenerationEosOutside",
       false,
       [](const auto& p) {
         WriteFile(p + "/generation_config.json", R"({"eos_token_id": 600})");
       },
       kInvalid,
       {"generation_config.json", "eos_token_id 600", "512"}},
      {"Truncated",
       false,
       [](const auto& p) {
         EXPECT_EQ(truncate((p + "/model.safetensors").c_str(), 400'000), 0);
       },
       kInvalid,
       {"model.safetensors", "truncated"}},
      {"MissingShard",
       true,
       [](const auto& p) {
         Remove(p + "/" + ShardOf(ReadIndex(p), "backbone.norm_f.weight"));
       },
       kNotFound,
       {"model.safetensors.index.json lists the shard", "of-"}},
      {"TensorInAnotherShard",
       true,
       [](const auto& p) {
         json index = ReadIndex(p);
         index["weight_map"]["backbone.norm_f.weight"] =
             ShardOf(index, "backbone.embeddings.weight");
         WriteIndex(p, index);
       },
       kInvalid,
       {"puts tensor backbone.norm_f.weight into model-00001",
        "but it lies in model-"}},
      {"TensorNotListed",
       true,
       [](const auto& p) {
         json index = ReadIndex(p);
         index["weight_map"].erase("backbone.norm_f.weight");
         WriteIndex(p, index);
       },
       kInvalid,
       {"holds tensor backbone.norm_f.weight", "does not list"}},
      {"TensorListedNotStored",
       true,
       [](const auto& p) {
         json index = ReadIndex(p);
         index["weight_map"]["backbone.ghost"] =
             ShardOf(index, "backbone.embeddings.weight");
         WriteIndex(p, index);
       },
       kInvalid,
       {"puts tensor backbone.ghost", "does not hold it"}},
      {"ShardOutsideTheDirectory",
       true,
       [](const auto& p) {
         json index = ReadIndex(p);
         index["weight_map"]["backbone.norm_f.weight"] = "../other.safetensors";
         WriteIndex(p, index);
       },
       kInvalid,
       {"backbone.norm_f.weight", "../other.safetensors"}},
      {"IndexWithoutMap",
       true,
       [](const auto& p) {
         WriteIndex(p, {{"metadata", json::object()}});
       },
       kInvalid,
       {"index.json", "weight_map"}},
      {"IndexNoJson",
       true,
       [](const auto& p) {
         WriteFile(p + "/model.safetensors.index.json", "weight_map:");
       },
       kInvalid,
       {"index.json:1:1", "not JSON"}},
  };
  return *table;
}

class BadDirectoryTest : public ::testing::TestWithParam<BadDirectory> {};

TEST_P(BadDirectoryTest, StopsTheLoadByName) {
  TempDirectory directory;
  SynthesisSpec spec = SmallSpec();
  if (GetParam().sharded) spec.shard_bytes_max = 200'000;
  const std::string path = BuildCheckpoint(spec, directory);
  ASSERT_TRUE(Checkpoint::Open(path).ok());
  GetParam().break_it(path);
  const absl::Status status = Checkpoint::Open(path).status();
  EXPECT_EQ(status.code(), GetParam().code) << status;
  EXPECT_THAT(status.ToString(), HasSubstr(path));
  for (const std::string& text : GetParam().says)
    EXPECT_THAT(status.ToString(), HasSubstr(text));
}

INSTANTIATE_TEST_SUITE_P(Table, BadDirectoryTest,
                         ::testing::ValuesIn(BadDirectoryTable()),
                         [](const ::testing::TestParamInfo<BadDirectory>& bad) {
                           return std::string(bad.param.name);
                         });

TEST(BadCheckpoint, NoDirectory) {
  EXPECT_THAT(Checkpoint::Open("/nowhere/at/all").status().ToString(),
              HasSubstr("NOT_FOUND: \"/nowhere/at/all\" is no directory"));
}

}  // namespace
}  // namespace trunkline::model
