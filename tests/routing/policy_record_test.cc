#include "routing/policy_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "common/random.h"
#include "tests/routing/routing_fixture.h"

namespace trunkline::routing {
namespace {

using ::testing::HasSubstr;

// --- The values of router_policy.json and of the variants in matrix_8x4.json.

std::vector<float> Floats(const nlohmann::json& j) {
  std::vector<float> v;
  for (const auto& x : j) {
    if (x.is_array()) {
      for (const auto& y : x) v.push_back(y.get<float>());
    } else {
      v.push_back(x.get<float>());
    }
  }
  return v;
}

RouteTable RouteOneRow(const PolicyRecord& r, const std::vector<float>& row) {
  RouterInput in;
  in.rows = 1;
  in.values = row;
  RouteTable table;
  EXPECT_TRUE(RouteByRecord(r, in, &table).ok());
  return table;
}

void ExpectIdsAndWeights(const RouteTable& table, const nlohmann::json& ids,
                         const nlohmann::json& weights) {
  ASSERT_EQ(static_cast<size_t>(table.size()), ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(table.expert_id[i].value, ids[i].get<uint32_t>());
    EXPECT_NEAR(static_cast<double>(table.gate[i]), weights[i].get<double>(),
                1e-6);
  }
}

TEST(PolicyRecord, ReproducesTheSoftmaxExample) {
  const auto c = LoadRoutingFixture("router_policy")["softmax_topk_example"];
  const std::vector<float> logits = Floats(c["logits"]);
  const int64_t k = c["top_k"];
  ExpectIdsAndWeights(RouteOneRow(SoftmaxTopKPolicy(4, k, true), logits),
                      c["selected_ids"], c["weights_renormalized"]);
  ExpectIdsAndWeights(RouteOneRow(TopKSoftmaxPolicy(4, k), logits),
                      c["selected_ids"], c["weights_selected_softmax"]);
  const RouteTable raw = RouteOneRow(SoftmaxTopKPolicy(4, k, false), logits);
  ExpectIdsAndWeights(raw, c["selected_ids"], c["weights_unnormalized"]);
  // If all experts agree, the layer's output is scaled by the selected mass.
  const double mass =
      static_cast<double>(raw.gate[0]) + static_cast<double>(raw.gate[1]);
  EXPECT_NEAR(mass, c["selected_mass"].get<double>(), 1e-6);
  EXPECT_NEAR(mass, c["unnormalized_scale_if_all_experts_agree"].get<double>(),
              1e-6);
  const RouteTable all = RouteOneRow(SoftmaxTopKPolicy(4, 4, false), logits);
  for (size_t e = 0; e < 4; ++e) {
    EXPECT_NEAR(static_cast<double>(all.gate[e]),
                c["full_softmax"][e].get<double>(), 1e-6);
  }
}

TEST(PolicyRecord, ReproducesTheIntroAndTheBoundaryMargin) {
  const auto file = LoadRoutingFixture("router_policy");
  const auto& intro = file["intro_example"];
  for (const PolicyRecord& r :
       {SoftmaxTopKPolicy(4, 2, true), TopKSoftmaxPolicy(4, 2)}) {
    ExpectIdsAndWeights(RouteOneRow(r, Floats(intro["logits"])),
                        intro["selected_ids"], intro["weights"]);
  }
  const auto& clean = file["eight_expert_clean_row"];
  const std::vector<float> logits = Floats(clean["logits"]);
  RouterInput in;
  in.rows = 1;
  in.values = logits;
  const PolicyRecord r = TopKSoftmaxPolicy(8, 2);
  const auto margins = BoundaryMargins(r, in);
  ASSERT_TRUE(margins.ok());
  EXPECT_NEAR((*margins)[0], clean["boundary_margin"].get<double>(), 1e-6);
  const RouteTable table = RouteOneRow(r, logits);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(table.expert_id[i].value,
              clean["selected_ids"][i].get<uint32_t>());
  }
}

// "adding one constant to all logits of a row changes nothing"
TEST(PolicyRecord, IsNotChangedByAConstantAddedToARowsLogits) {
  RandomStream random(4);
  for (int i = 0; i < 1000; ++i) {
    for (const PolicyRecord& r :
         {SoftmaxTopKPolicy(9, 3, true), SoftmaxTopKPolicy(9, 3, false),
          TopKSoftmaxPolicy(9, 3)}) {
      std::vector<float> row(9), moved(9);
      const float by = static_cast<float>(random.NextBelow(16));
      for (size_t e = 0; e < 9; ++e) {
        row[e] = static_cast<float>(random.NextBelow(64)) / 8.0f;
        moved[e] = row[e] + by;
      }
      const RouteTable a = RouteOneRow(r, row);
      const RouteTable b = RouteOneRow(r, moved);
      ASSERT_EQ(a.expert_id, b.expert_id);
      ASSERT_EQ(a.gate, b.gate);
      if (r.gate_domain != GateDomain::kScore) {
        ASSERT_NEAR(static_cast<double>(a.gate[0] + a.gate[1] + a.gate[2]), 1.0,
                    1e-6);
      }
    }
  }
}

class Matrix8x4 : public ::testing::Test {
 protected:
  Matrix8x4()
      : file_(LoadRoutingFixture("matrix_8x4")),
        probabilities_(Floats(file_["matrix_8x4"]["probabilities"])) {
    input_.rows = 8;
    input_.values = probabilities_;
    input_.transformed = true;
  }
  nlohmann::json file_;
  std::vector<float> probabilities_;
  RouterInput input_;
};

TEST_F(Matrix8x4, GivesTheTopTwoAndTheirGates) {
  RouteTable table;
  ASSERT_TRUE(
      RouteByRecord(SoftmaxTopKPolicy(4, 2, true), input_, &table).ok());
  const auto& m = file_["matrix_8x4"];
  ASSERT_EQ(table.size(), m["routes_requested"].get<int64_t>());
  std::vector<int> per_expert(4, 0);
  for (size_t r = 0; r < 16; ++r) {
    EXPECT_EQ(table.expert_id[r].value,
              m["top2_ids"][r / 2][r % 2].get<uint32_t>());
    EXPECT_NEAR(static_cast<double>(table.gate[r]),
                m["gates_renormalized"][r / 2][r % 2].get<double>(), 1e-6);
    ++per_expert[table.expert_id[r].value];
  }
  EXPECT_EQ(per_expert, m["routes_per_expert"].get<std::vector<int>>());
}

TEST_F(Matrix8x4, GivesShazeersEdgesWithoutNoiseAndJacobsDenseRows) {
  std::vector<float> logits;
  for (float p : probabilities_) logits.push_back(std::log(p));
  const std::vector<float> noise(32, 0.0f);
  RouterInput in;
  in.rows = 8;
  in.values = logits;
  in.noise = noise;
  RouteTable table;
  ASSERT_TRUE(RouteByRecord(NoisyTopKPolicy(4, 2), in, &table).ok());
  const auto& ids = file_["matrix_8x4"]["top2_ids"];
  EXPECT_EQ(table.size(),
            file_["variants"]["shazeer_zero_noise"]["rows"].get<int64_t>());
  for (size_t r = 0; r < 16; ++r) {
    EXPECT_EQ(table.expert_id[r].value, ids[r / 2][r % 2].get<uint32_t>());
  }
  ASSERT_TRUE(
      RouteByRecord(SoftmaxTopKPolicy(4, 4, false), input_, &table).ok());
  EXPECT_EQ(table.size(),
            file_["variants"]["jacobs_dense"]["expert_rows"].get<int64_t>());
}

TEST_F(Matrix8x4, GivesExpertChoicesTokensAndDegrees) {
  const auto& v = file_["variants"]["expert_choice"];
  RouteTable table;
  ASSERT_TRUE(
      RouteByRecord(ExpertChoicePolicy(4, v["C"]), input_, &table).ok());
  std::vector<int> degree(8, 0);
  std::vector<std::set<uint32_t>> tokens(4);
  for (size_t r = 0; r < static_cast<size_t>(table.size()); ++r) {
    ++degree[table.token_id[r]];
    tokens[table.expert_id[r].value].insert(table.token_id[r]);
  }
  EXPECT_EQ(degree, v["token_degree"].get<std::vector<int>>());
  EXPECT_EQ(table.size(), v["rows"].get<int64_t>());
  for (size_t e = 0; e < 4; ++e) {
    const auto expected =
        v["tokens_per_expert"][e].get<std::vector<uint32_t>>();
    EXPECT_EQ(tokens[e], std::set<uint32_t>(expected.begin(), expected.end()));
  }
}

TEST_F(Matrix8x4, GivesTheSoftMoeOutput) {
  const auto& v = file_["variants"]["soft_moe_small"];
  const std::vector<float> x = Floats(v["X"]);  // phi is the identity
  RouterInput in;
  in.rows = 3;
  in.values = x;
  const auto a = SoftAssign(SoftMoePolicy(2, 1), in);
  ASSERT_TRUE(a.ok());
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_NEAR(a->dispatch[i], v["dispatch_D"][i / 2][i % 2].get<double>(),
                1e-12);
    EXPECT_NEAR(a->combine[i], v["combine_C"][i / 2][i % 2].get<double>(),
                1e-12);
  }
  double slot[2][2] = {};
  for (size_t s = 0; s < 2; ++s) {
    for (size_t d = 0; d < 2; ++d) {
      for (size_t t = 0; t < 3; ++t) {
        slot[s][d] +=
            a->dispatch[t * 2 + s] * static_cast<double>(x[t * 2 + d]);
      }
      EXPECT_NEAR(slot[s][d], v["slot_inputs"][s][d].get<double>(), 1e-12);
      slot[s][d] *= s == 0 ? 2.0 : -1.0;  // experts 2x and -x
      EXPECT_NEAR(slot[s][d], v["slot_outputs"][s][d].get<double>(), 1e-12);
    }
  }
  for (size_t t = 0; t < 3; ++t) {
    for (size_t d = 0; d < 2; ++d) {
      const double y =
          a->combine[t * 2] * slot[0][d] + a->combine[t * 2 + 1] * slot[1][d];
      EXPECT_NEAR(y, v["output"][t][d].get<double>(), 1e-12);
    }
  }
  const auto& budget = file_["variants"]["soft_moe_budget"];
  const std::vector<float> eight(8 * 16, 0.0f);
  in.rows = 8;
  in.values = eight;
  const auto b = SoftAssign(SoftMoePolicy(4, 4), in);
  ASSERT_TRUE(b.ok());
  EXPECT_EQ(b->slots, budget["slots"].get<int64_t>());
  EXPECT_EQ(b->dispatch.size(),
            budget["assignment_scalars_per_matrix"].get<size_t>());
}

// --- What is not defined is refused, by field.

struct Refusal {
  std::string names;
  std::function<void(PolicyRecord&)> change;
};

TEST(PolicyRecord, RefusesWhatIsNotWellDefined) {
  const std::vector<std::pair<PolicyRecord, Refusal>> table = {
      {SwitchPolicy(8), {"experts", [](auto& r) { r.experts = 0; }}},
      {SwitchPolicy(8), {"top_k", [](auto& r) { r.top_k = 9; }}},
      {SwitchPolicy(8),
       {"tie", [](auto& r) { r.tie = TieRule::kUnspecified; }}},
      {SwitchPolicy(8), {"budget", [](auto& r) { r.budget = 2; }}},
      {SwitchPolicy(8), {"epsilon", [](auto& r) { r.epsilon = 1e-9; }}},
      {SoftmaxTopKPolicy(8, 2, true),
       {"epsilon", [](auto& r) { r.epsilon = -1; }}},
      {SwitchPolicy(8), {"scale", [](auto& r) { r.scale = 0; }}},
      {SwitchPolicy(8), {"scale", [](auto& r) { r.scale = NAN; }}},
      {SoftmaxTopKPolicy(8, 2, true),
       {"gate_domain",
        [](auto& r) { r.transform = ScoreTransform::kIdentity; }}},
      {TopKSoftmaxPolicy(8, 2),
       {"gate_domain",
        [](auto& r) { r.transform = ScoreTransform::kSigmoid; }}},
      {TopKSoftmaxPolicy(8, 2), {"bias", [](auto& r) { r.bias = true; }}},
      {GShardPolicy(8), {"noise", [](auto& r) { r.top_k = 3; }}},
      {GShardPolicy(8),
       {"noise", [](auto& r) { r.gate_domain = GateDomain::kScore; }}},
      {GShardPolicy(8), {"noise", [](auto& r) { r.scale = 2.0; }}},
      {NemotronHPolicy(8, 2, 4, 1, true, 1),
       {"topk_group", [](auto& r) { r.top_k = 3; }}},
      {NemotronHPolicy(8, 2, 4, 1, true, 1),
       {"n_group", [](auto& r) { r.n_group = 3; }}},
      {ExpertChoicePolicy(8, 2), {"budget", [](auto& r) { r.budget = 0; }}},
      {ExpertChoicePolicy(8, 2), {"top_k", [](auto& r) { r.top_k = 2; }}},
      {ExpertChoicePolicy(8, 2), {"n_group", [](auto& r) { r.n_group = 2; }}},
      {ExpertChoicePolicy(8, 2), {"owner", [](auto& r) { r.bias = true; }}},
      {ExpertChoicePolicy(8, 2), {"owner", [](auto& r) { r.scale = 2; }}},
      {ExpertChoicePolicy(8, 2),
       {"noise", [](auto& r) { r.noise = NoiseSource::kLogitNoise; }}},
      {ExpertChoicePolicy(8, 2),
       {"noise", [](auto& r) { r.noise = NoiseSource::kSecondDraw; }}},
      {SoftMoePolicy(8, 1),
       {"transform", [](auto& r) { r.transform = ScoreTransform::kSigmoid; }}},
      {SwitchPolicy(8),
       {"record",
        [](auto& r) { r.precision = static_cast<RouterPrecision>(7); }}},
  };
  for (const auto& [policy, refusal] : table) {
    ASSERT_TRUE(ValidateRecord(policy).ok()) << policy.name;
    PolicyRecord bad = policy;
    refusal.change(bad);
    const absl::Status status = ValidateRecord(bad);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument)
        << policy.name << ", " << refusal.names;
    EXPECT_THAT(std::string(status.message()), HasSubstr(refusal.names));
    RouteTable out;
    EXPECT_FALSE(RouteByRecord(bad, RouterInput(), &out).ok());
  }
}

TEST(PolicyRecord, RefusesToServeADecoderWithWhatIsNotCausal) {
  const std::vector<std::pair<PolicyRecord, std::string>> table = {
      {ExpertChoicePolicy(8, 2), "depend on later tokens"},
      {SoftMoePolicy(8, 1), "mixes all tokens"},
      {NoisyTopKPolicy(8, 2), "noise or draws"},
      {GShardPolicy(8), "noise or draws"},
      {SoftmaxTopKPolicy(8, 2, true), "sigmoid"},
      {TopKSoftmaxPolicy(8, 2), "sigmoid"},
  };
  for (const auto& [policy, why] : table) {
    const auto serving = ServingPolicy(policy);
    ASSERT_FALSE(serving.ok()) << policy.name;
    EXPECT_EQ(serving.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(serving.status().message()), HasSubstr(why));
    EXPECT_THAT(std::string(serving.status().message()),
                HasSubstr(policy.name));
  }
  PolicyRecord r = NemotronHPolicy(8, 2, 1, 1, true, 2.5);
  EXPECT_TRUE(ServingPolicy(r).ok());
  r.epsilon = 1e-9;
  EXPECT_THAT(std::string(ServingPolicy(r).status().message()),
              HasSubstr("1e-20"));
  r = NemotronHPolicy(8, 2, 1, 1, true, 0.1);  // not an f32
  EXPECT_THAT(std::string(ServingPolicy(r).status().message()),
              HasSubstr("scale"));
  r = NemotronHPolicy(8, 2, 1, 1, true, 2.5);
  r.precision = RouterPrecision::kBF16Logits;
  EXPECT_THAT(std::string(ServingPolicy(r).status().message()),
              HasSubstr("bf16 logits"));
}

TEST(PolicyRecord, RefusesInputsThatDoNotFit) {
  const std::vector<float> values(16, 0.5f), four(4, 0.0f);
  const std::vector<double> draws = {0.5, 0.5, 0.5, 1.5};
  const auto message = [&](const PolicyRecord& r, const RouterInput& in) {
    RouteTable table;
    return std::string(RouteByRecord(r, in, &table).message());
  };
  RouterInput in;
  in.rows = 3;
  in.values = values;
  EXPECT_THAT(message(SwitchPolicy(4), in), HasSubstr("scores has 16"));
  in.rows = 4;
  in.bias = four;
  EXPECT_THAT(message(SwitchPolicy(4), in), HasSubstr("bias has 4"));
  in.bias = {};
  EXPECT_THAT(message(NemotronHPolicy(4, 1, 1, 1, true, 1), in),
              HasSubstr("bias has 0"));
  EXPECT_THAT(message(NoisyTopKPolicy(4, 1), in), HasSubstr("noise has 0"));
  EXPECT_THAT(message(GShardPolicy(4), in), HasSubstr("draws has 0"));
  in.draws = draws;
  EXPECT_THAT(message(GShardPolicy(4), in), HasSubstr("draw 3"));
  in.draws = {};
  EXPECT_THAT(message(ExpertChoicePolicy(4, 5), in), HasSubstr("budget"));
  EXPECT_THAT(message(SoftMoePolicy(4, 1), in), HasSubstr("no routes"));
  std::vector<float> bad(values);
  bad[5] = INFINITY;
  in.values = bad;
  EXPECT_THAT(message(SwitchPolicy(4), in), HasSubstr("score 5"));
}

TEST(PolicyRecord, RoundsLogitsToBf16WhereTheRecordSaysSo) {
  PolicyRecord r = TopKSoftmaxPolicy(2, 1);
  // Equal in bf16, so that the lower id wins; different in f32.
  const std::vector<float> row = {1.0f, 1.0f + 0x1.0p-12f};
  EXPECT_EQ(RouteOneRow(r, row).expert_id[0], ExpertId(1));
  r.precision = RouterPrecision::kBF16Logits;
  EXPECT_EQ(RouteOneRow(r, row).expert_id[0], ExpertId(0));
}

}  // namespace
}  // namespace trunkline::routing
