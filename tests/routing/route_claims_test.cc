// What a record claims beside its routes: soft assignments, bytes, recovery,
// and the sums of a step.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "routing/route_validator.h"
#include "tests/routing/recorded_layer.h"

namespace trunkline::routing {
namespace {

using ::testing::HasSubstr;
using Contract = RouteContract;

// --- Soft assignment, bytes, recovery.

TEST(RouteValidator, RefusesASoftAssignmentOnOneAxisOrAcrossRequests) {
  const std::vector<float> logits = {1, 0, 0, 1, 1, 1};
  RouterInput in;
  in.rows = 3;
  in.values = logits;
  SoftAssignment good = *SoftAssign(SoftMoePolicy(2, 1), in);
  const std::vector<uint32_t> one_token = {5, 5, 5}, one_slot = {5, 5};
  EXPECT_FALSE(FindSoftViolation(good, one_token, one_slot).has_value());
  // Normalised over slots where the columns have to sum to one, and back.
  SoftAssignment bad = good;
  bad.dispatch = good.combine;
  EXPECT_EQ(FindSoftViolation(bad, one_token, one_slot)->contract,
            Contract::kSoftAxes);
  bad = good;
  bad.combine = good.dispatch;
  EXPECT_EQ(FindSoftViolation(bad, one_token, one_slot)->contract,
            Contract::kSoftAxes);
  const std::vector<uint32_t> two_tokens = {5, 6, 5};
  EXPECT_EQ(FindSoftViolation(good, two_tokens, one_slot)->contract,
            Contract::kSoftScope);
  const std::vector<uint32_t> short_slots = {5};
  EXPECT_EQ(FindSoftViolation(good, one_token, short_slots)->contract,
            Contract::kShapes);
}

TEST(RouteValidator, RefusesByteClaimsThatAreNotTheLayers) {
  TrafficShape s;
  s.tokens = 8192;
  s.experts = 8;
  s.top_k = 2;
  s.width = 4096;
  s.routes = s.represented = 16384;
  ByteClaims good;
  good.peak_bytes = PeakPayload(s).bytes;
  good.traffic = ReferenceTraffic(s);
  good.lifetimes = LayerBuffers(s);
  good.network_bytes = 5;
  good.network_measured = true;
  good.runtime_seconds = 0.1;
  good.runtime_measured = true;
  EXPECT_FALSE(FindByteViolation(s, good).has_value());
  const auto refusal = [&](const std::function<void(ByteClaims&)>& change) {
    ByteClaims bad = good;
    change(bad);
    const auto v = FindByteViolation(s, bad);
    return v ? v->contract : Contract::kShapes;
  };
  // Sum as peak.
  EXPECT_EQ(refusal([&](ByteClaims& c) {
              c.peak_bytes = 0;
              for (const BufferLife& b : LayerBuffers(s)) {
                c.peak_bytes += b.bytes;
              }
            }),
            Contract::kPeak);
  // T x d instead of R x d.
  EXPECT_EQ(refusal([&](ByteClaims& c) {
              c.traffic[5].bytes -= (s.routes - s.tokens) * s.width * 2;
            }),
            Contract::kTraffic);
  EXPECT_EQ(refusal([](ByteClaims& c) { c.traffic[0].stage = "nowhere"; }),
            Contract::kTraffic);
  // Maps or gates freed before the combine.
  for (size_t buffer : {3u, 6u, 7u}) {
    EXPECT_EQ(refusal([&](ByteClaims& c) { --c.lifetimes[buffer].last_stage; }),
              Contract::kLifetimes);
  }
  // Logical bytes as network bytes; a time made from a count.
  EXPECT_EQ(refusal([](ByteClaims& c) { c.network_measured = false; }),
            Contract::kMeasured);
  EXPECT_EQ(refusal([](ByteClaims& c) { c.runtime_measured = false; }),
            Contract::kMeasured);
}

TEST(RouteValidator, RefusesARecoveryThatRoutedAgainOrFromAnotherLayer) {
  const LayerRecord recorded = NoisyLayer().record;
  LayerRecord good = recorded;
  good.replayed = true;
  EXPECT_FALSE(FindReplayViolation(recorded, good).has_value());
  const std::vector<std::function<void(LayerRecord&)>> changes = {
      [](LayerRecord& r) { r.replayed = false; },
      [](LayerRecord& r) { r.layer = LayerIndex(4); },
      [](LayerRecord& r) { r.step = StepId(13); },
      [](LayerRecord& r) { r.noise[0] += 1.0f; },
      [](LayerRecord& r) { ++r.tied_rows; },
      [](LayerRecord& r) {
        r.table.expert_id[3] = ExpertId((r.table.expert_id[3].value + 1) % 4);
      },
      [](LayerRecord& r) { r.table.fate[3] = RouteFate::kDropped; },
      [](LayerRecord& r) {
        r.table.gate[3] = std::nextafter(r.table.gate[3], 2.0f);
      },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    LayerRecord bad = good;
    changes[i](bad);
    const auto v = FindReplayViolation(recorded, bad);
    ASSERT_TRUE(v.has_value()) << i;
    EXPECT_EQ(v->contract, Contract::kReplay);
  }
}

// --- The always-on part.

TEST(StepInvariants, HoldForEveryServingTableAndFindWhatSumsCanFind) {
  RandomStream random(17);
  for (int i = 0; i < 2000; ++i) {
    RouterPolicy policy;
    policy.experts = static_cast<int64_t>(2 + random.NextBelow(30));
    policy.top_k = static_cast<int64_t>(
        1 + random.NextBelow(static_cast<uint64_t>(policy.experts - 1)));
    policy.normalize = random.NextBelow(2) == 0;
    policy.scale = 2.5f;
    const auto rows = static_cast<int64_t>(random.NextBelow(9));
    std::vector<float> scores(static_cast<size_t>(rows * policy.experts));
    for (float& s : scores) s = static_cast<float>(random.NextUnit());
    RouteTable table;
    ASSERT_TRUE(SelectRoutes(policy, scores, rows, {}, &table).ok());
    ASSERT_TRUE(CheckStepInvariants(policy, table).ok());
    if (rows == 0) continue;
    const size_t at = random.NextBelow(table.token_id.size());
    const auto broken = [&](const std::function<void(RouteTable&)>& change) {
      RouteTable bad = table;
      change(bad);
      return std::string(CheckStepInvariants(policy, bad).message());
    };
    EXPECT_THAT(broken([&](auto& t) { t.token_id.pop_back(); }),
                HasSubstr("route degree"));
    EXPECT_THAT(broken([&](auto& t) { ++t.token_id[at]; }),
                HasSubstr("stable key"));
    EXPECT_THAT(broken([&](auto& t) { ++t.selected_slot[at]; }),
                HasSubstr("stable key"));
    EXPECT_THAT(broken([&](auto& t) {
                  t.expert_id[at] =
                      ExpertId(static_cast<uint32_t>(policy.experts));
                }),
                HasSubstr("selection"));
    EXPECT_THAT(broken([&](auto& t) { t.fate[at] = RouteFate::kDropped; }),
                HasSubstr("dropless"));
    EXPECT_THAT(broken([&](auto& t) { t.gate[at] = INFINITY; }),
                HasSubstr("selected gates"));
    if (policy.normalize) {
      EXPECT_THAT(broken([&](auto& t) {
                    t.gate[at] += 0.01f * 2.5f * static_cast<float>(rows);
                  }),
                  HasSubstr("selected gates"));
    }
  }
}

}  // namespace
}  // namespace trunkline::routing
