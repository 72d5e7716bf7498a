#include "placement/eplb.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "common/random.h"

namespace trunkline::placement {
namespace {

std::vector<double> WorkerLoads(const std::vector<double>& load,
                                const EplbResult& result, int64_t workers) {
  std::vector<double> totals(static_cast<size_t>(workers));
  const size_t per_worker = result.expert_of_slot.size() / totals.size();
  for (size_t slot = 0; slot < result.expert_of_slot.size(); ++slot) {
    const size_t e = static_cast<size_t>(result.expert_of_slot[slot]);
    totals[slot / per_worker] +=
        load[e] / static_cast<double>(result.copies[e]);
  }
  return totals;
}

double Balancedness(const std::vector<double>& loads) {
  const double mean = std::accumulate(loads.begin(), loads.end(), 0.0) /
                      static_cast<double>(loads.size());
  return mean / *std::max_element(loads.begin(), loads.end());
}

nlohmann::json Example() {
  std::ifstream file(TRUNKLINE_FIXTURES "/placement/eplb_example.json");
  return nlohmann::json::parse(file);
}

EplbShape ExampleShape(const nlohmann::json& input) {
  return {.num_replicas = input["num_replicas"],
          .num_groups = input["num_groups"],
          .num_nodes = input["num_nodes"],
          .num_workers = input["num_workers"]};
}

TEST(Eplb, ReproducesThePublishedExampleHierarchically) {
  const nlohmann::json example = Example();
  const nlohmann::json& want = example["hierarchical"];
  for (size_t l = 0; l < 2; ++l) {
    const std::vector<double> load = example["input"]["weight"][l];
    const EplbShape shape = ExampleShape(example["input"]);
    const auto result = EplbPlace(load, shape);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->expert_of_slot,
              want["phy2log"][l].get<std::vector<int64_t>>());
    EXPECT_EQ(result->copies, want["logcnt"][l].get<std::vector<int64_t>>());
    const auto loads = WorkerLoads(load, *result, shape.num_workers);
    EXPECT_EQ(loads, want["worker_loads"][l].get<std::vector<double>>());
    EXPECT_NEAR(Balancedness(loads), want["balancedness"][l].get<double>(),
                5e-5);
  }
}

TEST(Eplb, ReproducesThePublishedExampleGlobally) {
  const nlohmann::json example = Example();
  const nlohmann::json& want = example["global"];
  for (size_t l = 0; l < 2; ++l) {
    const std::vector<double> load = example["input"]["weight"][l];
    EplbShape shape = ExampleShape(example["input"]);
    shape.num_groups = 1;  // does not divide over the nodes
    const auto result = EplbPlace(load, shape);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->expert_of_slot,
              want["phy2log"][l].get<std::vector<int64_t>>());
    const auto loads = WorkerLoads(load, *result, shape.num_workers);
    EXPECT_EQ(*std::max_element(loads.begin(), loads.end()),
              want["max_load"][l].get<double>());
    EXPECT_NEAR(Balancedness(loads), want["balancedness"][l].get<double>(),
                5e-5);
  }
}

TEST(Eplb, UsesEverySlotAndCountsItsCopies) {
  RandomStream random(6);
  for (int trial = 0; trial < 300; ++trial) {
    const int64_t nodes = 1 + static_cast<int64_t>(random.NextBelow(3));
    const int64_t groups =
        nodes * (1 + static_cast<int64_t>(random.NextBelow(3)));
    const int64_t experts =
        groups * (1 + static_cast<int64_t>(random.NextBelow(6)));
    const int64_t workers =
        nodes * (1 + static_cast<int64_t>(random.NextBelow(4)));
    const int64_t per_worker = (experts + workers - 1) / workers +
                               static_cast<int64_t>(random.NextBelow(3));
    std::vector<double> load;
    for (int64_t e = 0; e < experts; ++e) {
      load.push_back(static_cast<double>(random.NextBelow(5)));  // many ties
    }
    const EplbShape shape{.num_replicas = workers * per_worker,
                          .num_groups = groups,
                          .num_nodes = nodes,
                          .num_workers = workers};
    const auto result = EplbPlace(load, shape);
    ASSERT_TRUE(result.ok()) << result.status();
    std::vector<int64_t> copies(load.size());
    for (const int64_t expert : result->expert_of_slot) {
      ++copies.at(static_cast<size_t>(expert));
    }
    EXPECT_EQ(copies, result->copies);
    for (const int64_t count : copies) EXPECT_GE(count, 1);
  }
}

TEST(Eplb, NamesWhatDoesNotDivide) {
  const std::vector<double> load = {1, 2, 3, 4};
  const auto said = [&](EplbShape shape, std::vector<double> l) {
    const auto result = EplbPlace(l, shape);
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(result.status().message());
  };
  using testing::HasSubstr;
  EXPECT_THAT(said({.num_replicas = 4, .num_groups = 3}, load),
              HasSubstr("3 groups"));
  EXPECT_THAT(said({.num_replicas = 4, .num_nodes = 2, .num_workers = 3}, load),
              HasSubstr("2 nodes"));
  EXPECT_THAT(said({.num_replicas = 5, .num_workers = 2}, load),
              HasSubstr("5 replicas"));
  EXPECT_THAT(said({.num_replicas = 2, .num_workers = 2}, load),
              HasSubstr("2 replicas for 4"));
  EXPECT_THAT(said({.num_replicas = 4}, {1, -1, 0, 0}), HasSubstr("expert 1"));
  EXPECT_THAT(said({.num_replicas = 4}, {1, 1, 0, std::nan("")}),
              HasSubstr("expert 3"));
}

}  // namespace
}  // namespace trunkline::placement
