#include "cli/inspect_placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "placement/placement_json.h"

namespace trunkline::cli {
namespace {

using placement::PlacementMap;
using ::testing::HasSubstr;

class InspectPlacement : public ::testing::Test {
 protected:
  void SetUp() override {
    auto checkpoint =
        model::Checkpoint::Open(TRUNKLINE_SOURCE_DIR "/models/demo");
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    checkpoint_ = *std::move(checkpoint);
    for (LayerIndex layer : checkpoint_->config().MoeLayers())
      shapes_.push_back({layer, 32, 1});
  }
  PlacementMap Map(int64_t workers, int64_t replicas) {
    std::vector<WorkerId> ids;
    for (uint32_t w = 0; w < workers; ++w) ids.push_back(WorkerId(w));
    return *placement::InitialPlacement(PlacementVersion(5), shapes_, ids,
                                        replicas);
  }
  absl::StatusOr<PlacementReport> Report(const PlacementMap& map) {
    return MakePlacementReport(
        *checkpoint_,
        placement::PlacementToJson({map, {{WorkerId(0), "expert-a"}}}),
        "p.json");
  }

  std::shared_ptr<const model::Checkpoint> checkpoint_;
  std::vector<placement::MoeLayerShape> shapes_;
};

TEST_F(InspectPlacement, AddsUpWhatEachWorkerHolds) {
  int64_t routed = 0, trunk = 0;
  for (const model::TensorInfo& tensor : checkpoint_->tensors()) {
    if (tensor.role == model::TensorRole::kRoutedExpert) routed += tensor.bytes;
    if (tensor.role == model::TensorRole::kTrunk) trunk += tensor.bytes;
  }
  for (int64_t replicas : {1, 2}) {
    const auto report = Report(Map(3, replicas));
    ASSERT_TRUE(report.ok()) << report.status();
    int64_t bytes = 0, experts = 0;
    for (const PlacementReport::Worker& worker : report->workers) {
      bytes += worker.expert_bytes;
      experts += worker.experts;
    }
    EXPECT_EQ(bytes, routed * replicas);
    EXPECT_EQ(experts, 4 * 32 * replicas);
    EXPECT_EQ(report->trunk_bytes, trunk);
    EXPECT_EQ(report->workers[0].name, "expert-a");
    EXPECT_EQ(report->version, 5u);
    // The router counts experts x hidden, never top_k; an expert is two
    // matrices of 96 x 256.
    const PlacementReport::Layer& layer = report->layers[0];
    EXPECT_EQ(layer.router_parameters, 32 * 256);
    EXPECT_EQ(layer.stored_parameters, 32 * 256 + 32 * 2 * 96 * 256);
    EXPECT_EQ(layer.active_parameters, 32 * 256 + 4 * 2 * 96 * 256);
    EXPECT_EQ(layer.copies, 32 * replicas);
    EXPECT_THAT(PlacementText(*report), HasSubstr("expert-a"));
    EXPECT_EQ(PlacementReportJson(*report)["layers"].size(), 4u);
  }
}

TEST_F(InspectPlacement, RefusesAPlacementThatIsNoneOfThisModel) {
  struct Case {
    const char* names;
    std::function<void(PlacementMap*)> break_it;
  };
  const Case cases[] = {
      {"layer 1 lists 31 experts",
       [](auto* m) { m->layers[0].replicas.pop_back(); }},
      {"expert 7", [](auto* m) { m->layers[1].replicas[7].clear(); }},
      {"expert 3",
       [](auto* m) {
         auto& replicas = m->layers[0].replicas[3];
         replicas.push_back(replicas[0]);
       }},
      {"layer 9", [](auto* m) { m->layers.pop_back(); }},
      {"layer 2", [](auto* m) { m->layers[0].layer = LayerIndex(2); }},
      {"layer", [](auto* m) { m->layers.push_back(m->layers[3]); }},
      {"slot", [](auto* m) { m->layers[0].replicas[0][0].slot = 99; }},
  };
  for (const Case& c : cases) {
    PlacementMap map = Map(2, 1);
    c.break_it(&map);
    const auto report = Report(map);
    ASSERT_FALSE(report.ok()) << c.names;
    EXPECT_THAT(std::string(report.status().message()), HasSubstr(c.names));
    EXPECT_THAT(std::string(report.status().message()), HasSubstr("p.json"));
  }
  EXPECT_FALSE(MakePlacementReport(*checkpoint_, "{}", "p.json").ok());
}

}  // namespace
}  // namespace trunkline::cli
