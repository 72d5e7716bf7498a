#include "cli/inspect_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

namespace trunkline::cli {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// Parameters and bytes by the file's own header: the numbers' second source.
struct Counted {
  int64_t parameters = 0, bytes = 0;
};
Counted CountTensors(const std::string& directory, const std::string& part) {
  std::ifstream file(directory + "/model.safetensors", std::ios::binary);
  uint64_t size = 0;
  file.read(reinterpret_cast<char*>(&size), sizeof(size));
  std::string text(size, ' ');
  file.read(text.data(), static_cast<std::streamsize>(size));
  Counted counted;
  const json header = json::parse(text);
  for (const auto& [name, tensor] : header.items()) {
    if (name == "__metadata__" || name.find(part) == std::string::npos) {
      continue;
    }
    int64_t elements = 1;
    for (const json& n : tensor["shape"]) elements *= n.get<int64_t>();
    counted.parameters += elements;
    counted.bytes += tensor["data_offsets"][1].get<int64_t>() -
                     tensor["data_offsets"][0].get<int64_t>();
  }
  return counted;
}

std::shared_ptr<const model::Checkpoint> Open(const std::string& directory) {
  auto opened = model::Checkpoint::Open(directory);
  EXPECT_TRUE(opened.ok()) << opened.status();
  return *opened;
}

const char kDemo[] = TRUNKLINE_SOURCE_DIR "/models/demo";

TEST(InspectReport, SumsAreThoseOfTheFilesHeader) {
  const InspectReport report = MakeInspectReport(*Open(kDemo));
  const Counted all = CountTensors(kDemo, "");
  const Counted mtp = CountTensors(kDemo, "mtp.");
  const Counted experts = CountTensors(kDemo, "mixer.experts.");
  const Counted mtp_experts =
      CountTensors(kDemo, "mtp.layers.1.mixer.experts.");
  EXPECT_GT(mtp.parameters, 0);
  EXPECT_EQ(report.census.total().parameters, all.parameters);
  EXPECT_EQ(report.census.model().parameters, all.parameters - mtp.parameters);
  EXPECT_EQ(report.mtp_bytes, mtp.bytes);
  EXPECT_EQ(report.routed_expert_bytes, experts.bytes - mtp_experts.bytes);
  EXPECT_EQ(report.trunk_bytes + report.routed_expert_bytes + report.mtp_bytes,
            all.bytes);
  int64_t layers = 0;
  for (const InspectReport::Layer& layer : report.layers) {
    const Counted counted = CountTensors(
        kDemo, "backbone.layers." + std::to_string(layer.index) + ".");
    EXPECT_EQ(layer.parameters, counted.parameters) << layer.index;
    EXPECT_EQ(layer.bytes, counted.bytes) << layer.index;
    layers += layer.active_parameters;
  }
  // What is outside the layers: one row of the embedding, final norm, head.
  EXPECT_EQ(report.census.model().active_parameters,
            layers + 256 + 256 + 2048 * 256);
}

// By hand, from the demo's geometry: 8 heads of 64, state 64, 2 groups, 4 mamba
// layers; 2 attention layers with 2 kv heads of 64; bf16 rows, fp32 SSM state.
TEST(InspectReport, StateIsCountedPerSequenceAndPerToken) {
  const InspectReport report = MakeInspectReport(*Open(kDemo));
  EXPECT_EQ(report.census.scan_state_bytes, 4 * 8 * 64 * 64 * 4);
  EXPECT_EQ(report.census.conv_state_bytes, 4 * 3 * (8 * 64 + 2 * 2 * 64) * 2);
  EXPECT_EQ(report.census.kv_bytes_per_token, 2 * 2 * 2 * 64 * 2);
}

// top 4 of 32 experts, each 96 x 256 up and down.
TEST(InspectReport, ATokenUsesTopKExperts) {
  const InspectReport report = MakeInspectReport(*Open(kDemo));
  const int64_t expert = 2 * 96 * 256;
  const auto& experts = report.census.part(model::TensorPart::kRoutedExperts);
  EXPECT_EQ(experts.active_parameters, 4 * 4 * expert);
  EXPECT_EQ(experts.decode_bytes, 4 * 4 * expert * 2);
  EXPECT_EQ(report.layers[1].parameters - report.layers[1].active_parameters,
            28 * expert);
}

TEST(InspectReport, JsonHasWhatTheTextRounds) {
  const InspectReport report = MakeInspectReport(*Open(kDemo));
  const json as_json = InspectJson(report);
  EXPECT_EQ(as_json["layer_pattern"], "MEM*EMEM*E");
  EXPECT_EQ(as_json["layers"].size(), 10u);
  EXPECT_EQ(as_json["model"]["parameters"], report.census.model().parameters);
  EXPECT_EQ(as_json["model"]["active_parameters"],
            report.census.model().active_parameters);
  EXPECT_EQ(as_json["state_bytes_per_token"], 1024);
  const std::string text = InspectText(report);
  for (const char* part :
       {"MEM*EMEM*E", "32 experts of 96, top 4, shared 192", "active per token",
        "state bytes per sequence", "10.0 M", "1.00 KiB"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

// Without experts, and without a prediction head.
TEST(InspectReport, ADenseModelHasNoExpertLines) {
  const InspectReport report =
      MakeInspectReport(*Open(TRUNKLINE_FIXTURES "/checkpoints/tiny-dense"));
  EXPECT_EQ(report.routed_expert_bytes, 0);
  const std::string text = InspectText(report);
  EXPECT_THAT(text, HasSubstr("M-M*-M-M"));
  EXPECT_THAT(text, testing::Not(HasSubstr("one routed expert")));
}

}  // namespace
}  // namespace trunkline::cli
