#include "placement/placement_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/placement/random_placement.h"

namespace trunkline::placement {
namespace {

using testing::HasSubstr;

TEST(PlacementJson, GivesBackWhatItWrote) {
  RandomStream random(5);
  for (int trial = 0; trial < 200; ++trial) {
    PlacementDocument document;
    const auto workers = RandomWorkers(random);
    document.map = RandomPlacement(random, RandomShapes(random), workers);
    for (const WorkerId worker : workers) {
      if (random.NextBelow(2) == 0) {
        document.worker_names[worker] =
            "expert-\"\\\xc3\xa9-" + std::to_string(worker.value);
      }
    }
    const std::string text = PlacementToJson(document);
    const auto read = PlacementFromJson(text);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->map.version, document.map.version);
    EXPECT_EQ(read->worker_names, document.worker_names);
    ASSERT_EQ(read->map.layers.size(), document.map.layers.size());
    for (size_t l = 0; l < read->map.layers.size(); ++l) {
      EXPECT_EQ(read->map.layers[l].layer, document.map.layers[l].layer);
      EXPECT_EQ(read->map.layers[l].replicas, document.map.layers[l].replicas);
    }
    EXPECT_EQ(PlacementToJson(*read), text);
  }
}

TEST(PlacementJson, NamesThePlaceOfEveryFault) {
  const std::string head =
      R"({"format":"trunkline.placement","format_version":1,)"
      R"("placement_version":1,)";
  const std::pair<std::string, const char*> bad[] = {
      {"", "syntax"},
      {"{", "syntax"},
      {"[]", "document: is not an object"},
      {"{}", "missing field 'format'"},
      {R"({"format":"other","format_version":1,"placement_version":1,)"
       R"("layers":[]})",
       "format"},
      {R"({"format":"trunkline.placement","format_version":2,)"
       R"("placement_version":1,"layers":[]})",
       "format_version: is 2"},
      {head + R"("layers":[],"surplus":1})", "unknown field 'surplus'"},
      {head + R"("layers":[],"layers":[]})", "field 'layers' repeated"},
      {head + R"("layers":{}})", "layers: is not an array"},
      {head + R"("layers":[{"layer":1}]})", "layers[0]: missing field"},
      {head + R"("layers":[{"layer":-1,"experts":[]}]})", "layers[0].layer"},
      {head + R"("layers":[{"layer":1.5,"experts":[]}]})", "layers[0].layer"},
      {head + R"("layers":[{"layer":4294967295,"experts":[]}]})",
       "layers[0].layer: is 4294967295"},
      {head + R"("layers":[{"layer":1,"experts":[1]}]})",
       "layers[0].experts[0]: is not an array"},
      {head + R"("layers":[{"layer":1,"experts":[[],[7]]}]})",
       "layers[0].experts[1][0]: is not an object"},
      {head + R"("layers":[{"layer":1,"experts":[[{"worker":0}]]}]})",
       "layers[0].experts[0][0]: missing field 'slot'"},
      {head +
           R"("layers":[{"layer":1,"experts":[[{"worker":"a","slot":0}]]}]})",
       "layers[0].experts[0][0].worker: is string"},
      {head + R"("workers":[{"id":0,"name":""}],"layers":[]})",
       "workers[0].name"},
      {head + R"("workers":[{"id":0,"name":"a"},{"id":0,"name":"b"}],)"
              R"("layers":[]})",
       "id 0 appears twice"},
      {head + R"("workers":[{"id":0,"name":"a"},{"id":1,"name":"a"}],)"
              R"("layers":[]})",
       "name 'a' appears twice"},
      {std::string(100000, '['), "nested deeper"},
  };
  for (const auto& [text, said] : bad) {
    const auto read = PlacementFromJson(text);
    EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(read.status().message()), HasSubstr(said)) << text;
  }
}

TEST(PlacementJson, GoesByNamesInAnotherCluster) {
  PlacementDocument document;
  document.map = *InitialPlacement(
      PlacementVersion(1),
      {{.layer = LayerIndex(0), .experts = 2, .expert_bytes = 1}},
      {WorkerId(0), WorkerId(1)}, 2);
  document.worker_names = {{WorkerId(0), "a"}, {WorkerId(1), "b"}};
  const auto map = ResolveWorkers(
      document, {{"a", WorkerId(9)}, {"b", WorkerId(4)}, {"c", WorkerId(0)}});
  ASSERT_TRUE(map.ok());
  EXPECT_EQ(map->layers[0].replicas[1],
            (std::vector<Replica>{{.worker = WorkerId(4), .slot = 1},
                                  {.worker = WorkerId(9), .slot = 1}}));
  const auto missing = ResolveWorkers(document, {{"a", WorkerId(9)}});
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("'b'"));
}

}  // namespace
}  // namespace trunkline::placement
