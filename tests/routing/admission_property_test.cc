// Admission against a reference without queues, and what it refuses.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>
#include <tuple>
#include <vector>

#include "common/random.h"
#include "routing/admission.h"
#include "routing/policy_record.h"
#include "routing/route_ledger.h"
#include "tests/routing/admission_cases.h"
#include "tests/routing/routing_fixture.h"

namespace trunkline::routing {
namespace {

using ::testing::HasSubstr;

// --- Against a reference without queues: a route is accepted when fewer than C
// routes of its expert and group stand before it.

RouteTable RandomTable(RandomStream& random) {
  const auto experts = static_cast<uint32_t>(1 + random.NextBelow(6));
  const auto k = static_cast<uint32_t>(1 + random.NextBelow(experts));
  const auto rows = static_cast<uint32_t>(random.NextBelow(13));
  RouteTable t;
  t.Clear(rows, experts, k);
  for (uint32_t token = 0; token < rows; ++token) {
    std::vector<uint32_t> ids(experts);
    std::iota(ids.begin(), ids.end(), 0u);
    for (uint32_t s = 0; s < k; ++s) {
      std::swap(ids[s], ids[s + random.NextBelow(experts - s)]);
      t.Add(token, static_cast<uint16_t>(s), ExpertId(ids[s]),
            static_cast<float>(1 + random.NextBelow(4)) / 4.0f,
            random.NextBelow(10) == 0 ? RouteFate::kNotDrawn
                                      : RouteFate::kAccepted);
    }
  }
  return t;
}

bool Before(const RouteTable& t, Arbitration order, size_t a, size_t b) {
  const auto source = [&] {
    return std::pair(t.token_id[a], t.selected_slot[a]) <
           std::pair(t.token_id[b], t.selected_slot[b]);
  };
  if (order == Arbitration::kTokenSlot) return source();
  if (order == Arbitration::kSlotToken) {
    return std::pair(uint32_t{t.selected_slot[a]}, t.token_id[a]) <
           std::pair(uint32_t{t.selected_slot[b]}, t.token_id[b]);
  }
  return t.gate[a] != t.gate[b] ? t.gate[a] > t.gate[b] : source();
}

TEST(Admission, AcceptsExactlyTheRoutesThatStandInTheFirstCPlaces) {
  RandomStream random(31);
  const Arbitration orders[] = {Arbitration::kGateTokenSlot,
                                Arbitration::kTokenSlot,
                                Arbitration::kSlotToken};
  int64_t dropped = 0;
  for (int i = 0; i < 10000; ++i) {
    const RouteTable before = RandomTable(random);
    AdmissionPolicy policy =
        Fixed(0.25 + random.NextUnit(), orders[random.NextBelow(3)]);
    policy.group_tokens = static_cast<int64_t>(random.NextBelow(5));
    const bool renormalize = random.NextBelow(2) == 0;
    if (renormalize) {
      policy.overflow = Overflow::kDropRenormalize;
      policy.renormalize = RenormalizeRule::kSelectedSum;
    }
    RouteTable after = before;
    AdmissionReport report;
    ASSERT_TRUE(AdmitRoutes(policy, {}, &after, &report).ok());
    const auto group = [&](size_t r) {
      return policy.group_tokens == 0
                 ? 0
                 : before.token_id[r] / policy.group_tokens;
    };
    std::vector<double> all(static_cast<size_t>(before.rows), 0);
    std::vector<double> kept(all);
    for (size_t r = 0; r < before.token_id.size(); ++r) {
      if (before.fate[r] == RouteFate::kNotDrawn) {
        ASSERT_EQ(after.fate[r], RouteFate::kNotDrawn);
        continue;
      }
      int64_t ahead = 0;
      for (size_t o = 0; o < before.token_id.size(); ++o) {
        ahead += o != r && before.fate[o] != RouteFate::kNotDrawn &&
                 before.expert_id[o] == before.expert_id[r] &&
                 group(o) == group(r) &&
                 Before(before, policy.arbitration, o, r);
      }
      int64_t tokens = before.rows;
      if (policy.group_tokens > 0) {
        tokens = std::min(policy.group_tokens,
                          before.rows - group(r) * policy.group_tokens);
      }
      const int64_t capacity = ExpertCapacity(policy.capacity_factor, tokens,
                                              before.top_k, before.experts);
      const bool accepted = ahead < capacity;
      ASSERT_EQ(after.fate[r] == RouteFate::kAccepted, accepted);
      dropped += accepted ? 0 : 1;
      ASSERT_EQ(after.expert_id[r], before.expert_id[r]);
      all[before.token_id[r]] += static_cast<double>(before.gate[r]);
      if (accepted) {
        kept[before.token_id[r]] += static_cast<double>(before.gate[r]);
      }
    }
    for (size_t r = 0; r < before.token_id.size(); ++r) {
      const uint32_t t = before.token_id[r];
      if (after.fate[r] == RouteFate::kAccepted && renormalize) {
        ASSERT_NEAR(static_cast<double>(after.gate[r]),
                    static_cast<double>(before.gate[r]) * all[t] / kept[t],
                    1e-5);
      } else {
        // The gate of a dropped route is lost and nobody gets it.
        ASSERT_EQ(after.gate[r], before.gate[r]);
      }
    }
    const RouteLedger ledger = TakeLedger(after, report);
    ASSERT_EQ(ledger.requested,
              ledger.accepted + ledger.dropped + ledger.not_drawn);
    for (const GroupAdmission& g : report.groups) {
      ASSERT_EQ(g.requested, g.accepted + g.dropped);
      ASSERT_EQ(g.unused, g.capacity * before.experts - g.accepted);
      for (int64_t n : g.executed) ASSERT_LE(n, g.capacity);
    }
  }
  EXPECT_GT(dropped, 10000);
}

TEST(Admission, DroplessAcceptsEverythingThatWasSelected) {
  RandomStream random(32);
  for (int i = 0; i < 10000; ++i) {
    const RouteTable before = RandomTable(random);
    RouteTable after = before;
    AdmissionReport report;
    ASSERT_TRUE(AdmitRoutes({}, {}, &after, &report).ok());
    ASSERT_EQ(after.fate, before.fate);
    ASSERT_EQ(after.gate, before.gate);
    ASSERT_EQ(after.expert_id, before.expert_id);
    const RouteLedger ledger = TakeLedger(after, report);
    ASSERT_EQ(ledger.dropped, 0);
    ASSERT_EQ(ledger.accepted + ledger.not_drawn, ledger.requested);
    ASSERT_EQ(ledger.utilization, 1.0);
  }
}

TEST(Admission, ASeedDecidesAndTheSameSeedDecidesTheSame) {
  const auto file = LoadRoutingFixture("matrix_8x4");
  std::set<std::set<Key>> outcomes;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    AdmissionPolicy policy = Fixed(1.0, Arbitration::kSeededRandom);
    policy.seed = seed;
    std::set<Key> first;
    for (int run = 0; run < 2; ++run) {
      RouteTable table = Matrix8x4Routes(file);
      AdmissionReport report;
      ASSERT_TRUE(AdmitRoutes(policy, {}, &table, &report).ok());
      const std::set<Key> dropped = KeysOf(table, RouteFate::kDropped);
      EXPECT_EQ(dropped.size(), 3u);
      if (run == 0) first = dropped;
      EXPECT_EQ(dropped, first);
    }
    outcomes.insert(first);
  }
  EXPECT_GT(outcomes.size(), 5u);
}

TEST(Admission, ReroutesToTheDeclaredCandidateWithTheDeclaredWeight) {
  // Both tokens want expert 0, which has one row; token 1 has to move.
  const std::vector<float> scores = {0.9f, 0.3f, 0.2f, 0.1f,  //
                                     0.8f, 0.1f, 0.4f, 0.2f};
  RouteTable start;
  start.Clear(2, 4, 1);
  start.Add(0, 0, ExpertId(0), 0.9f);
  start.Add(1, 0, ExpertId(0), 0.8f);
  AdmissionPolicy policy = Fixed(1.0, Arbitration::kGateTokenSlot);
  policy.overflow = Overflow::kReroute;
  policy.candidates = RerouteCandidates::kNextBestScore;
  policy.weight = RerouteWeight::kScoreRatio;
  AdmissionInput input;
  input.scores = scores;
  RouteTable table = start;
  AdmissionReport report;
  ASSERT_TRUE(AdmitRoutes(policy, input, &table, &report).ok());
  EXPECT_EQ(table.expert_id[1], ExpertId(2));
  EXPECT_EQ(table.gate[1], 0.8f * (0.4f / 0.8f));
  EXPECT_EQ(report.selected_expert[1], ExpertId(0));
  EXPECT_EQ(report.selected_gate[1], 0.8f);
  EXPECT_EQ(report.groups[0].rerouted, 1);
  RouteLedger ledger = TakeLedger(table, report);
  EXPECT_EQ(ledger.rerouted, 1);
  EXPECT_EQ(ledger.selected, (std::vector<int64_t>{2, 0, 0, 0}));
  EXPECT_EQ(ledger.executed, (std::vector<int64_t>{1, 0, 1, 0}));

  policy.candidates = RerouteCandidates::kDeclaredList;
  policy.weight = RerouteWeight::kKeepGate;
  policy.fallback = {ExpertId(0), ExpertId(3), ExpertId(1)};
  table = start;
  ASSERT_TRUE(AdmitRoutes(policy, {}, &table, &report).ok());
  EXPECT_EQ(table.expert_id[1], ExpertId(3));
  EXPECT_EQ(table.gate[1], 0.8f);

  policy.fallback = {ExpertId(0)};
  table = start;
  ASSERT_TRUE(AdmitRoutes(policy, {}, &table, &report).ok());
  EXPECT_EQ(table.fate[1], RouteFate::kDropped);  // no candidate has room
}

TEST(Admission, NeverReroutesATokenToAnExpertItAlreadyHas) {
  RandomStream random(33);
  for (int i = 0; i < 5000; ++i) {
    RouteTable table = RandomTable(random);
    std::vector<float> scores(static_cast<size_t>(table.rows * table.experts));
    for (float& s : scores) s = static_cast<float>(0.1 + random.NextUnit());
    AdmissionPolicy policy =
        Fixed(0.3 + random.NextUnit(), Arbitration::kGateTokenSlot);
    policy.overflow = Overflow::kReroute;
    policy.candidates = RerouteCandidates::kNextBestScore;
    policy.weight = RerouteWeight::kKeepGate;
    AdmissionInput input;
    input.scores = scores;
    AdmissionReport report;
    ASSERT_TRUE(AdmitRoutes(policy, input, &table, &report).ok());
    std::set<std::pair<uint32_t, uint32_t>> pairs;
    for (size_t r = 0; r < table.token_id.size(); ++r) {
      if (table.fate[r] != RouteFate::kAccepted) continue;
      ASSERT_TRUE(
          pairs.emplace(table.token_id[r], table.expert_id[r].value).second);
    }
    for (int64_t n : report.groups.empty() ? std::vector<int64_t>()
                                           : report.groups[0].executed) {
      ASSERT_LE(n, report.groups[0].capacity);
    }
  }
}

TEST(Admission, RefusesWhatIsNotWellDefined) {
  const auto with = [](const AdmissionPolicy& base,
                       const std::function<void(AdmissionPolicy&)>& change) {
    AdmissionPolicy p = base;
    change(p);
    return p;
  };
  const AdmissionPolicy dropless;
  const AdmissionPolicy fixed = Fixed(1.0, Arbitration::kGateTokenSlot);
  AdmissionPolicy reroute = fixed;
  reroute.overflow = Overflow::kReroute;
  reroute.candidates = RerouteCandidates::kDeclaredList;
  reroute.weight = RerouteWeight::kKeepGate;
  reroute.fallback = {ExpertId(1)};
  ASSERT_TRUE(ValidateAdmission(dropless, 4).ok());
  ASSERT_TRUE(ValidateAdmission(fixed, 4).ok());
  ASSERT_TRUE(ValidateAdmission(reroute, 4).ok());
  const std::vector<std::pair<AdmissionPolicy, std::string>> bad = {
      {with(dropless, [](auto& p) { p.capacity_factor = 1.0; }), "dropless"},
      {with(dropless, [](auto& p) { p.overflow = Overflow::kReroute; }),
       "dropless"},
      {with(dropless, [](auto& p) { p.group_tokens = 4; }), "dropless"},
      {with(fixed, [](auto& p) { p.capacity_factor = 0.0; }),
       "capacity_factor"},
      {with(fixed, [](auto& p) { p.capacity_factor = NAN; }),
       "capacity_factor"},
      {with(fixed, [](auto& p) { p.capacity_factor = -1; }), "capacity_factor"},
      {with(fixed, [](auto& p) { p.group_tokens = -1; }), "group_tokens"},
      {with(fixed, [](auto& p) { p.seed = 3; }), "seed"},
      {with(fixed,
            [](auto& p) { p.renormalize = RenormalizeRule::kSelectedSum; }),
       "renormalize"},
      {with(fixed, [](auto& p) { p.overflow = Overflow::kDropRenormalize; }),
       "renormalize"},
      {with(reroute, [](auto& p) { p.candidates = RerouteCandidates::kNone; }),
       "candidates"},
      {with(reroute, [](auto& p) { p.weight = RerouteWeight::kNone; }),
       "weight"},
      {with(reroute, [](auto& p) { p.fallback.clear(); }), "fallback"},
      {with(reroute, [](auto& p) { p.fallback = {ExpertId(4)}; }), "fallback"},
      {with(reroute,
            [](auto& p) {
              p.fallback = {ExpertId(1), ExpertId(1)};
            }),
       "fallback"},
      {with(fixed,
            [](auto& p) { p.arbitration = static_cast<Arbitration>(9); }),
       "not known"},
  };
  for (const auto& [policy, names] : bad) {
    const absl::Status status = ValidateAdmission(policy, 4);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << names;
    EXPECT_THAT(std::string(status.message()), HasSubstr(names));
  }
}

TEST(Admission, RefusesInputsThatDoNotFit) {
  RouteTable table;
  table.Clear(2, 2, 1);
  table.Add(0, 0, ExpertId(0), 1.0f);
  table.Add(1, 0, ExpertId(0), 0.0f);
  AdmissionReport report;
  AdmissionInput input;
  const std::vector<uint32_t> groups = {1};
  input.group_of_token = groups;
  EXPECT_FALSE(AdmitRoutes({}, input, &table, &report).ok());
  AdmissionPolicy policy = Fixed(1.0, Arbitration::kTokenSlot);
  policy.overflow = Overflow::kReroute;
  policy.candidates = RerouteCandidates::kNextBestScore;
  policy.weight = RerouteWeight::kScoreRatio;
  EXPECT_THAT(std::string(AdmitRoutes(policy, {}, &table, &report).message()),
              HasSubstr("scores"));
  const std::vector<float> zero = {0.5f, 0.5f, 0.0f, 0.5f};
  AdmissionInput scored;
  scored.scores = zero;  // the ratio to token 1's expert is not finite
  EXPECT_THAT(
      std::string(AdmitRoutes(policy, scored, &table, &report).message()),
      HasSubstr("not finite"));
  table.top_k = 0;
  EXPECT_THAT(std::string(AdmitRoutes(Fixed(1.0, Arbitration::kTokenSlot), {},
                                      &table, &report)
                              .message()),
              HasSubstr("no fixed number of routes"));
  table.top_k = 1;
  table.expert_id[0] = ExpertId(2);
  EXPECT_FALSE(AdmitRoutes({}, {}, &table, &report).ok());
}

}  // namespace
}  // namespace trunkline::routing
