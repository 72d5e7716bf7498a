#include "dispatch/combine_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "tests/dispatch/random_layer.h"
#include "tests/routing/routing_fixture.h"

namespace trunkline::dispatch {
namespace {

TEST(CombinePlan, OrdersEachTokensAcceptedRoutesByExpert) {
  RandomStream random(7);
  CombinePlan plan;  // reused
  for (int i = 0; i < 10000; ++i) {
    const RandomLayer layer = MakeRandomLayer(random, 12, 20, 3, i % 2 == 0);
    const routing::RouteTable& t = layer.table;
    PlanCombine(t, &plan);
    std::vector<std::tuple<uint32_t, uint32_t, uint32_t>> expected;
    for (uint32_t r = 0; r < t.size(); ++r) {
      if (t.fate[r] == routing::RouteFate::kAccepted) {
        expected.emplace_back(t.token_id[r], t.expert_id[r].value, r);
      }
    }
    std::sort(expected.begin(), expected.end());
    ASSERT_EQ(plan.offsets.size(), static_cast<size_t>(t.rows) + 1);
    ASSERT_EQ(plan.order.size(), expected.size());
    ASSERT_EQ(plan.offsets.back(), expected.size());
    for (uint32_t token = 0; token < t.rows; ++token) {
      ASSERT_LE(plan.offsets[token], plan.offsets[token + 1]);
      for (uint32_t at = plan.offsets[token]; at < plan.offsets[token + 1];
           ++at) {
        ASSERT_EQ(std::get<0>(expected[at]), token);
        ASSERT_EQ(std::get<2>(expected[at]), plan.order[at]);
      }
    }
  }
}

TEST(CombinePlan, GivesARowWithoutAcceptedRoutesAnEmptyPart) {
  routing::RouteTable table;
  table.Clear(3, 2, 1);
  table.Add(0, 0, ExpertId(1), 1.0f, routing::RouteFate::kDropped);
  table.Add(1, 0, ExpertId(0), 1.0f);
  table.Add(2, 0, ExpertId(0), 1.0f, routing::RouteFate::kDropped);
  CombinePlan plan;
  PlanCombine(table, &plan);
  EXPECT_EQ(plan.offsets, (std::vector<uint32_t>{0, 0, 1, 1}));
  EXPECT_EQ(plan.order, (std::vector<uint32_t>{1}));
  table.Clear(0, 2, 1);
  PlanCombine(table, &plan);
  EXPECT_EQ(plan.offsets, (std::vector<uint32_t>{0}));
}

// Three contributions whose sum depends on the order of addition: arrival
// order and per-worker sums give 1, the contract gives 0.
TEST(CombinePlan, AddsInAscendingExpertIdWhateverTheSlotsAre) {
  const nlohmann::json file = routing::LoadRoutingFixture("dispatch_combine");
  const nlohmann::json& c = file["combine_order"];
  std::vector<uint32_t> order = {0, 1, 2};
  do {
    routing::RouteTable table;
    table.Clear(1, 16, 3);
    std::vector<float> weighted;
    for (uint16_t slot = 0; slot < 3; ++slot) {
      const auto& entry = c["contributions"][order[slot]];
      table.Add(0, slot, ExpertId(entry["expert"].get<uint32_t>()), 1.0f);
      weighted.push_back(entry["weighted"].get<float>());
    }
    CombinePlan plan;
    PlanCombine(table, &plan);
    float sum = 0.0f;
    for (uint32_t r : plan.order) sum += weighted[r];
    EXPECT_EQ(sum, c["expected_fp32_ascending"].get<float>());
  } while (std::next_permutation(order.begin(), order.end()));
}

struct FixtureTable {
  routing::RouteTable table;
  std::vector<double> gate;  // as the file has them
};

FixtureTable ReadRoutes(const nlohmann::json& d) {
  FixtureTable f;
  f.table.Clear(3, 3, 2);
  for (const auto& r : d["routes"]) {
    f.table.Add(r["token"], r["slot"], ExpertId(r["expert"].get<uint32_t>()),
                r["gate"].get<float>());
    f.gate.push_back(r["gate"].get<double>());
  }
  return f;
}

// The three experts that the fixture names: 2x+[1,-1], -x+[0.5,2], x.
std::vector<double> RunExpert(uint32_t expert, const std::vector<double>& x) {
  switch (expert) {
    case 0:
      return {2 * x[0] + 1, 2 * x[1] - 1};
    case 1:
      return {-x[0] + 0.5, -x[1] + 2};
    default:
      return x;
  }
}

std::vector<std::vector<double>> Combine(const nlohmann::json& d,
                                         const FixtureTable& f) {
  CombinePlan plan;
  PlanCombine(f.table, &plan);
  std::vector<std::vector<double>> y(3, std::vector<double>(2, 0.0));
  for (size_t token = 0; token < 3; ++token) {
    for (uint32_t at = plan.offsets[token]; at < plan.offsets[token + 1];
         ++at) {
      const uint32_t r = plan.order[at];
      const std::vector<double> out =
          RunExpert(f.table.expert_id[r].value,
                    d["hidden"][token].get<std::vector<double>>());
      for (size_t i = 0; i < 2; ++i) y[token][i] += f.gate[r] * out[i];
    }
  }
  return y;
}

void ExpectOutput(const nlohmann::json& expected,
                  const std::vector<std::vector<double>>& y) {
  for (size_t token = 0; token < 3; ++token) {
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_NEAR(y[token][i], expected[token][i].get<double>(), 1e-12)
          << token << "," << i;
    }
  }
}

TEST(CombinePlan, ReproducesTheThreeTokenExample) {
  const nlohmann::json file = routing::LoadRoutingFixture("dispatch_combine");
  const nlohmann::json& d = file["dispatch_combine"];
  ExpectOutput(d["output"], Combine(d, ReadRoutes(d)));
}

TEST(CombinePlan, KeepsTheGateOfADroppedRouteUndistributed) {
  const nlohmann::json file = routing::LoadRoutingFixture("dispatch_combine");
  const nlohmann::json& d = file["dispatch_combine"];
  const nlohmann::json& probe = d["fixed_drop_probe"];
  FixtureTable f = ReadRoutes(d);
  for (const auto& dropped : probe["dropped_routes"]) {
    const auto row = std::stoul(dropped.get<std::string>().substr(1));
    f.table.fate[row] = routing::RouteFate::kDropped;
  }
  ExpectOutput(probe["output"], Combine(d, f));
}

}  // namespace
}  // namespace trunkline::dispatch
