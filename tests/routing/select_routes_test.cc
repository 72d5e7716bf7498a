#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "common/random.h"
#include "routing/router_policy.h"
#include "tests/routing/routing_fixture.h"

namespace trunkline::routing {
namespace {

using ::testing::HasSubstr;

struct Choice {
  std::vector<uint32_t> ids;
  std::vector<float> gates;
};

// The formulas, row by row, with full sorts and no cleverness.
Choice PlainSelect(const RouterPolicy& p, const std::vector<float>& score,
                   const std::vector<float>& bias) {
  const auto experts = static_cast<size_t>(p.experts);
  std::vector<float> corrected(score);
  for (size_t e = 0; e < experts; ++e) {
    if (!bias.empty()) corrected[e] = score[e] + bias[e];
  }
  const size_t groups = static_cast<size_t>(p.n_group);
  const size_t size = experts / groups;
  std::vector<size_t> group_order(groups);
  std::vector<float> group_score(groups);
  for (size_t g = 0; g < groups; ++g) {
    std::vector<float> members(
        corrected.begin() + static_cast<long>(g * size),
        corrected.begin() + static_cast<long>((g + 1) * size));
    std::sort(members.begin(), members.end(), std::greater<float>());
    group_score[g] = members.size() > 1 ? members[0] + members[1] : members[0];
    group_order[g] = g;
  }
  std::stable_sort(
      group_order.begin(), group_order.end(),
      [&](size_t a, size_t b) { return group_score[a] > group_score[b]; });
  std::vector<bool> kept(groups, false);
  for (int64_t i = 0; i < p.topk_group; ++i) {
    kept[group_order[static_cast<size_t>(i)]] = true;
  }
  std::vector<uint32_t> order;
  for (size_t e = 0; e < experts; ++e) {
    if (kept[e / size]) order.push_back(static_cast<uint32_t>(e));
  }
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return corrected[a] > corrected[b];
  });
  order.resize(static_cast<size_t>(p.top_k));
  Choice choice{order, {}};
  float sum = 0.0f;
  for (uint32_t e : order) sum += score[e];
  for (uint32_t e : order) {
    float w = score[e];
    if (p.normalize) w = w / (sum + 1e-20f);
    choice.gates.push_back(w * p.scale);
  }
  return choice;
}

void ExpectRow(const RouteTable& table, int64_t row, const Choice& expected,
               const std::string& what) {
  for (size_t s = 0; s < expected.ids.size(); ++s) {
    const size_t r =
        static_cast<size_t>(row) * static_cast<size_t>(table.top_k) + s;
    ASSERT_EQ(table.token_id[r], static_cast<uint32_t>(row)) << what;
    ASSERT_EQ(table.selected_slot[r], s) << what;
    ASSERT_EQ(table.expert_id[r].value, expected.ids[s])
        << what << ", row " << row << ", slot " << s;
    ASSERT_EQ(std::bit_cast<uint32_t>(table.gate[r]),
              std::bit_cast<uint32_t>(expected.gates[s]))
        << what << ", row " << row << ", slot " << s;
    ASSERT_EQ(table.fate[r], RouteFate::kAccepted);
  }
}

Choice FromJson(const nlohmann::json& ids, const nlohmann::json& hex) {
  Choice choice;
  for (const auto& id : ids) choice.ids.push_back(id.get<uint32_t>());
  for (const auto& h : hex) {
    const auto bits =
        static_cast<uint32_t>(std::stoul(h.get<std::string>(), nullptr, 16));
    choice.gates.push_back(std::bit_cast<float>(bits));
  }
  return choice;
}

// Scores and biases are multiples of 2^-16, so ids and bits are exact.
TEST(SelectRoutes, GivesTheIdsAndWeightBitsOfEveryGeneratedFixtureCase) {
  const nlohmann::json file = LoadRoutingFixture("sigmoid_group_router");
  int cases = 0;
  for (const auto& c : file["cases"]) {
    const auto name = c["name"].get<std::string>();
    RouterPolicy policy;
    policy.experts = c["experts"];
    policy.top_k = c["top_k"];
    policy.n_group = c["n_group"];
    policy.topk_group = c["topk_group"];
    policy.normalize = c["norm_topk_prob"];
    policy.scale = c["routed_scaling_factor"];
    const auto rows = c["rows"].get<int64_t>();
    FixtureGenerator generator(c["generator"]["seed"].get<uint64_t>());
    std::vector<float> scores(static_cast<size_t>(rows * policy.experts));
    for (float& s : scores) s = generator.Score();
    std::vector<float> bias(static_cast<size_t>(policy.experts));
    for (float& b : bias) b = generator.Bias();
    if (c.contains("scores")) {  // the recipe is ours to get right
      std::vector<float> given;
      for (const auto& row : c["scores"]) {
        for (const auto& v : row) given.push_back(v.get<float>());
      }
      ASSERT_EQ(scores, given) << name;
      ASSERT_EQ(bias, c["bias"].get<std::vector<float>>()) << name;
    }
    RouteTable table;
    const absl::Status status =
        SelectRoutes(policy, scores, rows, bias, &table);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_EQ(table.size(), rows * policy.top_k);
    for (int64_t r = 0; r < rows; ++r) {
      const auto& expected = c["expected"][static_cast<size_t>(r)];
      ExpectRow(table, r,
                FromJson(expected["ids"], expected["weights_f32_hex"]), name);
      for (size_t s = 0; s < expected["weights"].size(); ++s) {
        ASSERT_NEAR(table.gate[static_cast<size_t>(r * policy.top_k) + s],
                    expected["weights"][s].get<double>(), 1e-6);
      }
    }
    ++cases;
  }
  EXPECT_EQ(cases, 6);
}

TEST(SelectRoutes, GivesTheIdsAndWeightBitsOfEveryEdgeCase) {
  const nlohmann::json file = LoadRoutingFixture("sigmoid_group_router");
  int cases = 0;
  for (const auto& c : file["edge_cases"]) {
    const auto scores = c["scores"].get<std::vector<float>>();
    const auto bias = c["bias"].get<std::vector<float>>();
    RouterPolicy policy;
    policy.experts = static_cast<int64_t>(scores.size());
    policy.top_k = c["K"];
    policy.n_group = c["G"];
    policy.topk_group = c["TG"];
    policy.normalize = c["norm"];
    policy.scale = c["scale"];
    RouteTable table;
    const absl::Status status = SelectRoutes(policy, scores, 1, bias, &table);
    ASSERT_TRUE(status.ok()) << status;
    ExpectRow(table, 0, FromJson(c["ids"], c["weights_f32_hex"]),
              c["name"].get<std::string>());
    ++cases;
  }
  EXPECT_EQ(cases, 7);
}

// A coarse grid of scores makes ties common, inside rows and at the boundary.
TEST(SelectRoutes, EqualsThePlainFormulasOnTenThousandRandomCases) {
  RandomStream random(20240611);
  RouteTable table;  // reused: what an earlier case left must not show
  int64_t ties = 0;
  for (int i = 0; i < 10000; ++i) {
    RouterPolicy policy;
    policy.n_group = static_cast<int64_t>(1 + random.NextBelow(8));
    const auto group_size = static_cast<int64_t>(1 + random.NextBelow(20));
    policy.experts = policy.n_group * group_size;
    policy.topk_group = static_cast<int64_t>(
        1 + random.NextBelow(static_cast<uint64_t>(policy.n_group)));
    policy.top_k =
        static_cast<int64_t>(1 + random.NextBelow(static_cast<uint64_t>(
                                     policy.topk_group * group_size)));
    policy.normalize = random.NextBelow(2) == 0;
    policy.scale = static_cast<float>(0.25 + 4.0 * random.NextUnit());
    const auto rows = static_cast<int64_t>(random.NextBelow(4));
    const uint64_t grid = random.NextBelow(2) == 0 ? 8 : 1u << 20;
    std::vector<float> scores(static_cast<size_t>(rows * policy.experts));
    for (float& s : scores) {
      s = static_cast<float>(random.NextBelow(grid)) / static_cast<float>(grid);
    }
    std::vector<float> bias;
    if (random.NextBelow(4) != 0) {
      bias.resize(static_cast<size_t>(policy.experts));
      for (float& b : bias) {
        b = (static_cast<float>(random.NextBelow(grid)) /
                 static_cast<float>(grid) -
             0.5f);
      }
    }
    const absl::Status status =
        SelectRoutes(policy, scores, rows, bias, &table);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_EQ(table.size(), rows * policy.top_k);
    for (int64_t r = 0; r < rows; ++r) {
      const std::vector<float> row(
          scores.begin() + static_cast<long>(r * policy.experts),
          scores.begin() + static_cast<long>((r + 1) * policy.experts));
      const Choice expected = PlainSelect(policy, row, bias);
      ExpectRow(table, r, expected, "case " + std::to_string(i));
      for (size_t s = 1; s < expected.ids.size(); ++s) {
        const auto c = [&](size_t at) {
          const uint32_t e = expected.ids[at];
          return row[e] + (bias.empty() ? 0.0f : bias[e]);
        };
        ties += c(s - 1) == c(s) ? 1 : 0;
      }
    }
  }
  EXPECT_GT(ties, 10000);
}

TEST(SelectRoutes, KeepsNothingOfTheTableItReuses) {
  RouterPolicy policy;
  policy.experts = 4;
  policy.top_k = 2;
  RouteTable table;
  table.Clear(9, 9, 9);
  for (uint32_t i = 0; i < 50; ++i) {
    table.Add(7, 7, ExpertId(7), 7.0f, RouteFate::kDropped);
  }
  const std::vector<float> scores = {0.1f, 0.4f, 0.3f, 0.2f};
  ASSERT_TRUE(SelectRoutes(policy, scores, 1, {}, &table).ok());
  EXPECT_EQ(table.rows, 1);
  EXPECT_EQ(table.experts, 4);
  EXPECT_EQ(table.top_k, 2);
  ASSERT_EQ(table.size(), 2);
  EXPECT_EQ(table.fate[0], RouteFate::kAccepted);
  EXPECT_EQ(table.expert_id[0], ExpertId(1));
  EXPECT_EQ(table.expert_id[1], ExpertId(2));
}

// A table that has grown is filled in place.
TEST(SelectRoutes, DoesNotMoveTheMemoryOfATableThatHasGrown) {
  RouterPolicy policy;
  policy.experts = 64;
  policy.top_k = 8;
  std::vector<float> scores(64 * 5);
  for (size_t i = 0; i < scores.size(); ++i) {
    scores[i] = static_cast<float>(i % 17);
  }
  RouteTable table;
  ASSERT_TRUE(SelectRoutes(policy, scores, 5, {}, &table).ok());
  const void* before[] = {table.token_id.data(), table.selected_slot.data(),
                          table.expert_id.data(), table.gate.data(),
                          table.fate.data()};
  for (int64_t rows : {1, 5, 3, 0, 5}) {
    ASSERT_TRUE(SelectRoutes(policy,
                             std::span<const float>(scores).first(
                                 static_cast<size_t>(rows) * 64),
                             rows, {}, &table)
                    .ok());
    const void* after[] = {table.token_id.data(), table.selected_slot.data(),
                           table.expert_id.data(), table.gate.data(),
                           table.fate.data()};
    EXPECT_TRUE(std::equal(before, before + 5, after));
  }
}

TEST(SelectRoutes, NamesRowAndExpertOfAScoreThatIsNotFinite) {
  RouterPolicy policy;
  policy.experts = 40;
  policy.top_k = 3;
  for (int64_t groups : {1, 4}) {
    policy.n_group = groups;
    policy.topk_group = groups;
    for (float bad : {std::numeric_limits<float>::quiet_NaN(),
                      std::numeric_limits<float>::infinity(),
                      -std::numeric_limits<float>::infinity()}) {
      std::vector<float> scores(80, 0.5f);
      scores[40 + 37] = bad;
      RouteTable table;
      const absl::Status status = SelectRoutes(policy, scores, 2, {}, &table);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(status.message()), HasSubstr("row 1, expert 37"));
      EXPECT_EQ(table.size(), 0);
    }
  }
  std::vector<float> scores(40, 0.5f);
  std::vector<float> bias(40, 0.0f);
  bias[11] = std::numeric_limits<float>::quiet_NaN();
  RouteTable table;
  EXPECT_THAT(
      std::string(SelectRoutes(policy, scores, 1, bias, &table).message()),
      HasSubstr("row 0, expert 11"));
}

TEST(SelectRoutes, RefusesSpansThatDoNotFitThePolicy) {
  RouterPolicy policy;
  policy.experts = 4;
  policy.top_k = 2;
  RouteTable table;
  const std::vector<float> scores(8, 0.5f);
  EXPECT_THAT(
      std::string(SelectRoutes(policy, scores, 3, {}, &table).message()),
      HasSubstr("router scores have 8 values"));
  EXPECT_THAT(
      std::string(SelectRoutes(policy, scores, 2, std::vector<float>(3), &table)
                      .message()),
      HasSubstr("router bias has 3 values"));
  EXPECT_FALSE(SelectRoutes(policy, scores, -1, {}, &table).ok());
}

struct BadPolicy {
  RouterPolicy policy;
  std::string names;
};

TEST(ValidatePolicy, NamesTheFieldThatIsNotWellDefined) {
  const auto make = [](int64_t experts, int64_t top_k, int64_t n_group,
                       int64_t topk_group, float scale) {
    RouterPolicy p;
    p.experts = experts;
    p.top_k = top_k;
    p.n_group = n_group;
    p.topk_group = topk_group;
    p.scale = scale;
    return p;
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<BadPolicy> bad = {
      {make(0, 1, 1, 1, 1.0f), "experts = 0"},
      {make(8, 0, 1, 1, 1.0f), "top_k = 0"},
      {make(8, 9, 1, 1, 1.0f), "top_k = 9"},
      {make(8, 2, 0, 1, 1.0f), "n_group = 0"},
      {make(8, 2, 3, 1, 1.0f), "n_group = 3"},
      {make(8, 2, 4, 0, 1.0f), "topk_group = 0"},
      {make(8, 2, 4, 5, 1.0f), "topk_group = 5"},
      {make(8, 5, 4, 2, 1.0f), "topk_group = 2"},
      {make(8, 2, 1, 1, 0.0f), "scale = 0"},
      {make(8, 2, 1, 1, nan), "scale = nan"},
  };
  for (const BadPolicy& b : bad) {
    const absl::Status status = ValidatePolicy(b.policy);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << b.names;
    EXPECT_THAT(std::string(status.message()), HasSubstr(b.names));
  }
  EXPECT_TRUE(ValidatePolicy(make(8, 8, 1, 1, 1.0f)).ok());
  EXPECT_TRUE(ValidatePolicy(make(8, 4, 4, 2, 2.5f)).ok());
}

}  // namespace
}  // namespace trunkline::routing
