#include "model/shape_presets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/census.h"
#include "model/checkpoint.h"
#include "model/config_json.h"
#include "tests/model/checkpoint_builder.h"

namespace trunkline::model {
namespace {

using ::testing::HasSubstr;

SynthesisSpec Shape(const std::string& name) {
  auto spec = NamedShape(name);
  EXPECT_TRUE(spec.ok()) << spec.status();
  return *std::move(spec);
}

// In billions, without the prediction head.
struct Size {
  const char* shape;
  double parameters, active;
};
class ShapePresets : public ::testing::TestWithParam<Size> {};

// "30B-A3B" and so on, to the half of the last digit of what the names say.
TEST_P(ShapePresets, HaveTheSizeThatTheirNamesSay) {
  const Census census =
      TakeCensus(Shape(GetParam().shape).config, DType::kBF16);
  EXPECT_NEAR(static_cast<double>(census.model().parameters) * 1e-9,
              GetParam().parameters, 0.02 * GetParam().parameters);
  EXPECT_NEAR(static_cast<double>(census.model().active_parameters) * 1e-9,
              GetParam().active, 0.08 * GetParam().active);
}

INSTANTIATE_TEST_SUITE_P(
    Releases, ShapePresets,
    ::testing::Values(Size{"nano", 31.6, 3.4}, Size{"lightning", 31.6, 3.4},
                      Size{"super", 120.7, 12.1}, Size{"ultra", 550, 55}),
    [](const auto& param) { return std::string(param.param.shape); });

// nemotron-h.md 1.5.
TEST(ShapePresets, HaveTheLayerTablesOfTheReleases) {
  const auto attention = [](const std::string& name) {
    std::vector<size_t> at;
    const std::string pattern = Shape(name).config.LayerPattern();
    for (size_t i = 0; i < pattern.size(); ++i)
      if (pattern[i] == '*') at.push_back(i);
    at.push_back(pattern.size());
    return at;
  };
  using ::testing::ElementsAre;
  EXPECT_THAT(attention("nano"), ElementsAre(5, 12, 19, 26, 33, 42, 52));
  EXPECT_THAT(attention("lightning"), ElementsAre(5, 12, 19, 26, 33, 42, 52));
  EXPECT_THAT(attention("super"),
              ElementsAre(7, 16, 25, 36, 47, 58, 69, 78, 88));
  EXPECT_THAT(attention("ultra"),
              ElementsAre(7, 14, 23, 32, 39, 48, 57, 64, 73, 82, 89, 98, 108));
}

TEST(ShapePresets, EveryShapeIsAConfigurationThatParses) {
  for (const std::string& name : ShapeNames()) {
    const SynthesisSpec spec = Shape(name);
    const auto text = ConfigJson(spec.config, spec.dtype, spec.spelling);
    EXPECT_TRUE(text.ok()) << name << ": " << text.status();
  }
}

TEST(ShapePresets, ALayerTableKeepsTheLayersShapes) {
  SynthesisSpec spec = Shape("nano");
  ASSERT_TRUE(SetLayers("MEM*E", &spec.config).ok());
  EXPECT_EQ(spec.config.LayerPattern(), "MEM*E");
  EXPECT_EQ(spec.config.layers[0].mamba.in_proj_rows(), 10304);
  EXPECT_EQ(spec.config.layers[3].attention.kv_heads, 2);
  EXPECT_EQ(spec.config.layers[4].moe.shared_width, 3712);
  EXPECT_EQ(spec.config.layers[4].index, LayerIndex(4));
}

TEST(ShapePresets, NameWhatTheyDoNotHave) {
  SynthesisSpec spec = Shape("nano");
  EXPECT_THAT(SetLayers("ME-", &spec.config).ToString(),
              HasSubstr("the shape has no layer '-'; it has ME*"));
  EXPECT_THAT(SetLayers("MXE", &spec.config).ToString(), HasSubstr("'X'"));
  EXPECT_FALSE(SetLayers("", &spec.config).ok());
  EXPECT_THAT(NamedShape("giant").status().ToString(),
              HasSubstr("nano, lightning, super, ultra, tiny"));
}

// Layers that differ in size are written block by block.
TEST(ShapePresets, AConfigurationWithUnevenLayersKeepsThem) {
  SmallModel model;
  ModelConfig config = SmallConfig(model);
  config.layers[1].moe.experts = 8;
  SynthesisSpec spec = ShapeOf(config);
  EXPECT_EQ(spec.spelling, LayerTableSpelling::kBlocks);
  TempDirectory directory;
  auto checkpoint = Checkpoint::Open(BuildCheckpoint(spec, directory));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ((*checkpoint)->config().layers[1].moe.experts, 8);
  EXPECT_EQ((*checkpoint)->config().layers[4].moe.experts, 16);
}

}  // namespace
}  // namespace trunkline::model
