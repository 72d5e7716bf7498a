#include "routing/admission.h"

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
#include "routing/policy_record.h"
#include "routing/route_ledger.h"
#include "tests/routing/routing_fixture.h"

namespace trunkline::routing {
namespace {

using ::testing::HasSubstr;
using Key = std::tuple<uint32_t, uint32_t, uint32_t>;  // token, slot, expert

AdmissionPolicy Fixed(double factor, Arbitration order) {
  AdmissionPolicy p;
  p.kind = AdmissionKind::kFixedCapacity;
  p.capacity_factor = factor;
  p.arbitration = order;
  return p;
}

RouteTable Matrix8x4Routes(const nlohmann::json& file) {
  RouteTable table;
  table.Clear(8, 4, 2);
  for (const auto& r : file["capacity_arbitration_8x4"]["routes"]) {
    table.Add(r["token"], r["slot"], ExpertId(r["expert"].get<uint32_t>()),
              r["gate"].get<float>());
  }
  return table;
}

std::set<Key> KeysOf(const RouteTable& t, RouteFate fate) {
  std::set<Key> keys;
  for (size_t r = 0; r < t.token_id.size(); ++r) {
    if (t.fate[r] == fate) {
      keys.emplace(t.token_id[r], t.selected_slot[r], t.expert_id[r].value);
    }
  }
  return keys;
}

std::set<Key> KeysOf(const nlohmann::json& list) {
  std::set<Key> keys;
  for (const auto& k : list) keys.emplace(k[0], k[1], k[2]);
  return keys;
}

TEST(Admission, DropsTheFixturesRoutesInEachOrderAndCapacity) {
  const auto file = LoadRoutingFixture("matrix_8x4");
  const std::pair<std::string, Arbitration> orders[] = {
      {"gate_desc_token_slot", Arbitration::kGateTokenSlot},
      {"source_order_token_slot", Arbitration::kTokenSlot},
      {"slot_then_token", Arbitration::kSlotToken}};
  int cases = 0;
  for (const auto& [name, order] : orders) {
    for (const auto& [capacity, expected] :
         file["capacity_arbitration_8x4"]["orders"][name].items()) {
      RouteTable table = Matrix8x4Routes(file);
      AdmissionReport report;
      // 8 tokens x 2 routes / 4 experts: the factor is C / 4.
      ASSERT_TRUE(AdmitRoutes(Fixed(std::stod(capacity) / 4.0, order), {},
                              &table, &report)
                      .ok());
      ASSERT_EQ(report.groups.size(), 1u);
      EXPECT_EQ(report.groups[0].capacity, std::stoll(capacity));
      EXPECT_EQ(KeysOf(table, RouteFate::kAccepted),
                KeysOf(expected["accepted"]));
      EXPECT_EQ(KeysOf(table, RouteFate::kDropped),
                KeysOf(expected["overflow"]));
      EXPECT_EQ(report.groups[0].executed,
                expected["accepted_per_expert"].get<std::vector<int64_t>>());
      ++cases;
    }
  }
  EXPECT_EQ(cases, 12);
}

TEST(Admission, ReproducesTheCapacitySweep) {
  const auto file = LoadRoutingFixture("capacity");
  const auto matrix = LoadRoutingFixture("matrix_8x4");
  for (const auto& row : file["capacity_factor_sweep"]["rows"]) {
    RouteTable table = Matrix8x4Routes(matrix);
    AdmissionReport report;
    const double factor = row["capacity_factor"];
    ASSERT_TRUE(AdmitRoutes(Fixed(factor, Arbitration::kGateTokenSlot), {},
                            &table, &report)
                    .ok());
    const RouteLedger ledger = TakeLedger(table, report);
    EXPECT_EQ(report.groups[0].capacity, row["C"].get<int64_t>());
    EXPECT_EQ(ledger.accepted, row["accepted"].get<int64_t>());
    EXPECT_EQ(ledger.dropped, row["dropped"].get<int64_t>());
    EXPECT_EQ(ledger.unused, row["unused_slots"].get<int64_t>());
    EXPECT_NEAR(ledger.utilization, row["utilization"].get<double>(), 1e-12);
    EXPECT_EQ(ledger.executed,
              row["accepted_per_expert"].get<std::vector<int64_t>>());
    EXPECT_EQ(
        ledger.selected,
        file["capacity_factor_sweep"]["counts"].get<std::vector<int64_t>>());
    const CapacityLedger counts =
        ApplyCapacity(ledger.selected, report.groups[0].capacity);
    EXPECT_EQ(counts.reserved, row["reserved_rows"].get<int64_t>());
    EXPECT_EQ(counts.overflow_of_expert,
              row["overflow_per_expert"].get<std::vector<int64_t>>());
    EXPECT_EQ(counts.accepted, ledger.accepted);
  }
}

TEST(Admission, ReproducesTheWorkedExamplesAndTheGroupCeilings) {
  const auto file = LoadRoutingFixture("capacity");
  const auto& w = file["worked_example"];
  const int64_t capacity = ExpertCapacity(w["CF"], w["T"], w["k"], w["E"]);
  EXPECT_EQ(capacity, w["C"].get<int64_t>());
  EXPECT_EQ(w["T"].get<int64_t>() * w["k"].get<int64_t>(),
            w["R"].get<int64_t>());
  EXPECT_EQ(capacity * w["E"].get<int64_t>(), w["reserved"].get<int64_t>());
  EXPECT_EQ(capacity * w["E"].get<int64_t>() - w["R"].get<int64_t>(),
            w["slack"].get<int64_t>());
  EXPECT_EQ(w["R"].get<int64_t>() / w["E"].get<int64_t>(),
            w["mean"].get<int64_t>());
  const auto& o = file["worked_overflow"];
  EXPECT_EQ(ExpertCapacity(o["CF"], 8, 2, 4), o["C"].get<int64_t>());
  const std::vector<int64_t> count = {o["n_E0"].get<int64_t>()};
  const CapacityLedger ledger = ApplyCapacity(count, o["C"]);
  EXPECT_EQ(ledger.accepted, o["accepted_E0"].get<int64_t>());
  EXPECT_EQ(ledger.dropped, o["overflow_E0"].get<int64_t>());
  const auto& g = file["group_size_ceiling"];
  for (const auto& row : g["rows"]) {
    const int64_t c =
        ExpertCapacity(g["CF"], row["group_tokens"], g["k"], g["E"]);
    EXPECT_EQ(c, row["C"].get<int64_t>());
    const int64_t reserved = c * g["E"].get<int64_t>();
    EXPECT_EQ(reserved, row["reserved_rows"].get<int64_t>());
    EXPECT_EQ(reserved - row["routes"].get<int64_t>(),
              row["rounding_overhead_rows"].get<int64_t>());
  }
}

TEST(Admission, ReproducesTheSkewSweep) {
  const auto file = LoadRoutingFixture("capacity");
  const auto& sweep = file["skew_sweep"];
  int cases = 0;
  for (const char* part : {"rows", "realizable_extra"}) {
    for (const auto& row : sweep[part]) {
      const auto counts = row["counts"].get<std::vector<int64_t>>();
      const LoadSummary load = Summarize(counts);
      EXPECT_NEAR(load.cv_squared, row["cv2"].get<double>(), 1e-12);
      EXPECT_NEAR(load.entropy, row["entropy_norm"].get<double>(), 1e-12);
      const CapacityLedger ledger = ApplyCapacity(counts, row["C"]);
      EXPECT_EQ(row["C"].get<int64_t>(),
                ExpertCapacity(sweep["capacity_factor"], 8, 2, 4));
      EXPECT_EQ(ledger.accepted, row["accepted"].get<int64_t>());
      EXPECT_EQ(ledger.dropped, row["dropped"].get<int64_t>());
      EXPECT_EQ(ledger.unused, row["unused_slots"].get<int64_t>());
      ++cases;
    }
  }
  EXPECT_EQ(cases, 6);
}

TEST(Admission, CountsPerRoutingGroupAndNotGlobally) {
  const auto c = LoadRoutingFixture("capacity")["group_local_overflow"];
  RouteTable table;
  table.Clear(8, 4, 1);
  uint32_t token = 0;
  for (const auto& group : c["groups"]) {
    for (const auto& e : group["requests"]) {
      table.Add(token++, 0, ExpertId(e.get<uint32_t>()), 1.0f);
    }
  }
  RouteTable global = table;
  AdmissionReport report;
  AdmissionPolicy policy = Fixed(c["CF"], Arbitration::kTokenSlot);
  ASSERT_TRUE(AdmitRoutes(policy, {}, &global, &report).ok());
  EXPECT_EQ(report.groups[0].selected,
            c["global"]["counts"].get<std::vector<int64_t>>());
  EXPECT_EQ(report.groups[0].capacity, c["global"]["C"].get<int64_t>());
  EXPECT_EQ(report.groups[0].dropped, c["global"]["dropped"].get<int64_t>());
  const std::vector<uint32_t> identity = {7, 7, 7, 7, 9, 9, 9, 9};
  for (bool by_identity : {false, true}) {
    RouteTable grouped = table;
    AdmissionInput input;
    policy.group_tokens = by_identity ? 0 : c["T_group"].get<int64_t>();
    if (by_identity) input.group_of_token = identity;
    ASSERT_TRUE(AdmitRoutes(policy, input, &grouped, &report).ok());
    ASSERT_EQ(report.groups.size(), 2u);
    int64_t dropped = 0;
    for (size_t g = 0; g < 2; ++g) {
      const auto& expected = c["groups"][g];
      EXPECT_EQ(report.groups[g].group, by_identity ? 7u + 2 * g : g);
      EXPECT_EQ(report.groups[g].capacity, c["C"].get<int64_t>());
      EXPECT_EQ(report.groups[g].selected,
                expected["counts"].get<std::vector<int64_t>>());
      EXPECT_EQ(report.groups[g].dropped, expected["dropped"].get<int64_t>());
      EXPECT_EQ(report.groups[g].unused,
                expected["stranded_slots"].get<int64_t>());
      dropped += report.groups[g].dropped;
    }
    EXPECT_EQ(dropped, c["grouped_total_dropped"].get<int64_t>());
  }
}

// The same token with the same score: accepted or not, as its neighbour is.
TEST(Admission, MakesATokensFateDependOnItsBatchUnlessDropless) {
  const auto c = LoadRoutingFixture("capacity")["focal_token_flip"];
  for (const char* batch : {"baseline", "mutated"}) {
    RouteTable table;
    table.Clear(2, 1, 1);
    std::vector<std::string> ids;
    for (const auto& t : c[batch]) {
      table.Add(static_cast<uint32_t>(ids.size()), 0, ExpertId(0),
                t["gate"].get<float>());
      ids.push_back(t["id"]);
    }
    RouteTable dropless = table;
    AdmissionReport report;
    // C = ceil(0.5 x 2 x 1 / 1) = 1
    ASSERT_TRUE(AdmitRoutes(Fixed(0.5, Arbitration::kGateTokenSlot), {}, &table,
                            &report)
                    .ok());
    ASSERT_EQ(report.groups[0].capacity, c["C"].get<int64_t>());
    const auto expected =
        c[std::string(batch) + "_accepted"].get<std::string>();
    for (size_t t = 0; t < 2; ++t) {
      EXPECT_EQ(table.fate[t] == RouteFate::kAccepted, ids[t] == expected);
    }
    ASSERT_TRUE(AdmitRoutes({}, {}, &dropless, &report).ok());
    EXPECT_EQ(report.groups[0].dropped, 0);
    EXPECT_EQ(KeysOf(dropless, RouteFate::kAccepted).size(), 2u);
  }
}

TEST(Admission, ExecutesThirteenOfGShardsSixteenRoutes) {
  const auto file = LoadRoutingFixture("matrix_8x4");
  const auto& v = file["variants"]["gshard"];
  std::vector<float> p;
  for (const auto& row : file["matrix_8x4"]["probabilities"]) {
    for (const auto& x : row) p.push_back(x.get<float>());
  }
  const auto draws = v["draw"].get<std::vector<double>>();
  RouterInput in;
  in.rows = 8;
  in.values = p;
  in.transformed = true;
  in.draws = draws;
  RouteTable table;
  ASSERT_TRUE(RouteByRecord(GShardPolicy(4), in, &table).ok());
  AdmissionReport report;
  ASSERT_TRUE(
      AdmitRoutes(Fixed(1.0, Arbitration::kSlotToken), {}, &table, &report)
          .ok());
  const RouteLedger ledger = TakeLedger(table, report);
  EXPECT_EQ(report.groups[0].capacity, v["C"].get<int64_t>());
  EXPECT_EQ(ledger.accepted, v["executed_rows"].get<int64_t>());
  EXPECT_EQ(ledger.requested, v["represented_rows"].get<int64_t>());
  EXPECT_EQ(ledger.executed, v["counts"].get<std::vector<int64_t>>());
  std::vector<uint32_t> first, second;
  for (size_t r = 0; r < 16; ++r) {
    if (table.fate[r] != RouteFate::kAccepted) continue;
    (table.selected_slot[r] == 0 ? first : second).push_back(table.token_id[r]);
  }
  EXPECT_EQ(first, v["accepted_first_tokens"].get<std::vector<uint32_t>>());
  EXPECT_EQ(second, v["accepted_second_tokens"].get<std::vector<uint32_t>>());
  std::set<Key> rejected;
  for (const auto& r : v["rejected"]) {
    rejected.emplace(r["token"], r["slot"], r["expert"]);
  }
  EXPECT_EQ(KeysOf(table, RouteFate::kDropped), rejected);
}

TEST(Admission, DropsTokensFourAndSevenUnderSwitch) {
  const auto file = LoadRoutingFixture("matrix_8x4");
  const auto& v = file["variants"]["switch"];
  std::vector<float> p;
  for (const auto& row : file["matrix_8x4"]["probabilities"]) {
    for (const auto& x : row) p.push_back(x.get<float>());
  }
  RouterInput in;
  in.rows = 8;
  in.values = p;
  in.transformed = true;
  RouteTable table;
  ASSERT_TRUE(RouteByRecord(SwitchPolicy(4), in, &table).ok());
  AdmissionReport report;
  ASSERT_TRUE(
      AdmitRoutes(Fixed(1.0, Arbitration::kTokenSlot), {}, &table, &report)
          .ok());
  const RouteLedger ledger = TakeLedger(table, report);
  EXPECT_EQ(report.groups[0].capacity, v["C"].get<int64_t>());
  EXPECT_EQ(ledger.executed, v["counts"].get<std::vector<int64_t>>());
  EXPECT_EQ(ledger.accepted, v["executed_rows"].get<int64_t>());
  EXPECT_EQ(report.groups[0].capacity * 4,
            v["represented_rows"].get<int64_t>());
  std::vector<std::vector<uint32_t>> accepted;
  std::vector<uint32_t> dropped;
  for (size_t r = 0; r < 8; ++r) {
    if (table.fate[r] == RouteFate::kAccepted) {
      accepted.push_back({table.token_id[r], table.expert_id[r].value});
    } else {
      dropped.push_back(table.token_id[r]);
    }
  }
  EXPECT_EQ(accepted, v["accepted"].get<std::vector<std::vector<uint32_t>>>());
  EXPECT_EQ(dropped, v["dropped_tokens"].get<std::vector<uint32_t>>());
  EXPECT_EQ(ledger.uncovered, 2);
}

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
