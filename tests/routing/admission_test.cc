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
#include "tests/routing/admission_cases.h"
#include "tests/routing/routing_fixture.h"

namespace trunkline::routing {
namespace {

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

}  // namespace
}  // namespace trunkline::routing
