#include "dispatch/dispatch_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "tests/dispatch/random_layer.h"
#include "tests/routing/routing_fixture.h"

namespace trunkline::dispatch {
namespace {

using ::testing::HasSubstr;

size_t LargestExpertCount(const DispatchPlan& plan,
                          const routing::RouteTable& table) {
  size_t largest = 0;
  for (const WorkerShare& share : plan.shares) {
    std::set<ExpertId> experts;
    for (uint32_t r : share.routes) experts.insert(table.expert_id[r]);
    largest = std::max(largest, experts.size());
  }
  return largest;
}

// Tries every assignment of chosen experts to live replicas.
size_t SmallestPossible(const std::vector<std::vector<uint32_t>>& candidates,
                        size_t at, std::vector<size_t>& counts, size_t best) {
  const size_t largest = *std::max_element(counts.begin(), counts.end());
  if (largest >= best) return best;
  if (at == candidates.size()) return largest;
  for (uint32_t w : candidates[at]) {
    ++counts[w];
    best = std::min(best, SmallestPossible(candidates, at + 1, counts, best));
    --counts[w];
  }
  return best;
}

void CheckShares(const DispatchPlan& plan, const RandomLayer& layer,
                 const std::vector<WorkerId>& live,
                 std::vector<uint32_t> expected_routes) {
  const routing::RouteTable& t = layer.table;
  std::vector<uint32_t> seen;
  std::map<ExpertId, WorkerId> owner;
  for (size_t s = 0; s < plan.shares.size(); ++s) {
    const WorkerShare& share = plan.shares[s];
    if (s > 0) {
      ASSERT_LT(plan.shares[s - 1].worker, share.worker);
    }
    ASSERT_TRUE(std::count(live.begin(), live.end(), share.worker) == 1);
    ASSERT_FALSE(share.routes.empty());
    ASSERT_EQ(share.routes.size(), share.row_of_route.size());
    std::set<uint32_t> tokens;
    for (size_t i = 0; i < share.routes.size(); ++i) {
      const uint32_t r = share.routes[i];
      seen.push_back(r);
      tokens.insert(t.token_id[r]);
      ASSERT_EQ(share.rows[share.row_of_route[i]], t.token_id[r]);
      const auto& replicas = layer.placement.replicas[t.expert_id[r].value];
      ASSERT_TRUE(std::any_of(
          replicas.begin(), replicas.end(),
          [&](const auto& rep) { return rep.worker == share.worker; }));
      // One expert's rows of one step are computed in one place.
      const auto [it, fresh] = owner.emplace(t.expert_id[r], share.worker);
      ASSERT_EQ(it->second, share.worker);
      if (i > 0) {
        const uint32_t b = share.routes[i - 1];
        ASSERT_LT(
            std::tuple(t.expert_id[b], t.token_id[b], t.selected_slot[b]),
            std::tuple(t.expert_id[r], t.token_id[r], t.selected_slot[r]));
      }
    }
    ASSERT_EQ(share.rows, std::vector<uint32_t>(tokens.begin(), tokens.end()));
  }
  std::sort(seen.begin(), seen.end());
  ASSERT_EQ(seen, expected_routes);
}

TEST(DispatchPlan, SendsEachRouteOnceAndEachRowOncePerWorker) {
  RandomStream random(11);
  DispatchPlanner planner;  // reused
  DispatchPlan plan;
  for (int i = 0; i < 10000; ++i) {
    const RandomLayer layer = MakeRandomLayer(random, 10, 12, 5, i % 2 == 0);
    std::vector<uint32_t> accepted;
    for (uint32_t r = 0; r < layer.table.size(); ++r) {
      if (layer.table.fate[r] == routing::RouteFate::kAccepted) {
        accepted.push_back(r);
      }
    }
    std::vector<uint32_t> subset;
    for (uint32_t r : accepted) {
      if (random.NextBelow(3) == 0) subset.push_back(r);
    }
    for (bool all : {true, false}) {
      const absl::Status status = planner.Plan(
          layer.table, all ? std::vector<uint32_t>() : subset, layer.placement,
          PlacementVersion(4), layer.workers, &plan);
      ASSERT_TRUE(status.ok()) << status;
      ASSERT_EQ(plan.version, PlacementVersion(4));
      ASSERT_EQ(plan.layer, layer.placement.layer);
      CheckShares(plan, layer, layer.workers,
                  all || subset.empty() ? accepted : subset);
    }
  }
}

TEST(DispatchPlan, MakesTheLargestNumberOfExpertsOnAWorkerMinimal) {
  RandomStream random(12);
  int improved_over_first_replica = 0;
  for (int i = 0; i < 3000; ++i) {
    const RandomLayer layer = MakeRandomLayer(random, 6, 9, 4, false);
    const auto plan = PlanDispatch(layer.table, {}, layer.placement,
                                   PlacementVersion(1), layer.workers);
    ASSERT_TRUE(plan.ok());
    if (plan->shares.empty()) continue;
    std::set<ExpertId> chosen(layer.table.expert_id.begin(),
                              layer.table.expert_id.end());
    std::vector<std::vector<uint32_t>> candidates;
    std::vector<size_t> first(layer.workers.size(), 0);
    for (ExpertId e : chosen) {
      candidates.emplace_back();
      for (const auto& rep : layer.placement.replicas[e.value]) {
        candidates.back().push_back((rep.worker.value - 3) / 2);
      }
      ++first[candidates.back().front()];
    }
    std::vector<size_t> counts(layer.workers.size(), 0);
    const size_t best =
        SmallestPossible(candidates, 0, counts, chosen.size() + 1);
    ASSERT_EQ(LargestExpertCount(*plan, layer.table), best) << "case " << i;
    if (best < *std::max_element(first.begin(), first.end())) {
      ++improved_over_first_replica;
    }
  }
  EXPECT_GT(improved_over_first_replica, 500);
}

TEST(DispatchPlan, UsesOnlyLiveReplicas) {
  RandomStream random(13);
  int planned = 0;
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    const RandomLayer layer = MakeRandomLayer(random, 6, 9, 4, false);
    std::vector<WorkerId> live;
    for (WorkerId w : layer.workers) {
      if (random.NextBelow(3) != 0) live.push_back(w);
    }
    bool servable = true;
    for (ExpertId e : layer.table.expert_id) {
      const auto& replicas = layer.placement.replicas[e.value];
      servable &=
          std::any_of(replicas.begin(), replicas.end(), [&](const auto& rep) {
            return std::count(live.begin(), live.end(), rep.worker) > 0;
          });
    }
    const auto plan = PlanDispatch(layer.table, {}, layer.placement,
                                   PlacementVersion(1), live);
    ASSERT_EQ(plan.ok(), servable);
    if (servable) {
      std::vector<uint32_t> all(static_cast<size_t>(layer.table.size()));
      std::iota(all.begin(), all.end(), 0u);
      CheckShares(*plan, layer, live, all);
      ++planned;
    } else {
      ASSERT_EQ(plan.status().code(), absl::StatusCode::kUnavailable);
      ++refused;
    }
  }
  EXPECT_GT(planned, 300);
  EXPECT_GT(refused, 300);
}

TEST(DispatchPlan, NamesLayerExpertAndDeadWorkersWhenNoReplicaIsLive) {
  placement::LayerPlacement placement{
      LayerIndex(6),
      {{{WorkerId(1), 0}}, {{WorkerId(2), 0}, {WorkerId(5), 0}}}};
  routing::RouteTable table;
  table.Clear(1, 2, 2);
  table.Add(0, 0, ExpertId(0), 0.5f);
  table.Add(0, 1, ExpertId(1), 0.5f);
  const std::vector<WorkerId> live = {WorkerId(1)};
  const auto plan =
      PlanDispatch(table, {}, placement, PlacementVersion(1), live);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kUnavailable);
  const std::string message(plan.status().message());
  EXPECT_THAT(message, HasSubstr("layer 6"));
  EXPECT_THAT(message, HasSubstr("expert 1"));
  EXPECT_THAT(message, HasSubstr("worker 2, worker 5"));
}

TEST(DispatchPlan, RefusesRoutesThatItCanNotPlan) {
  placement::LayerPlacement placement{LayerIndex(0), {{{WorkerId(1), 0}}}};
  const std::vector<WorkerId> live = {WorkerId(1)};
  routing::RouteTable table;
  table.Clear(2, 2, 1);
  table.Add(0, 0, ExpertId(0), 1.0f);
  table.Add(1, 0, ExpertId(0), 1.0f, routing::RouteFate::kDropped);
  const auto plan = [&](std::vector<uint32_t> subset) {
    return PlanDispatch(table, subset, placement, PlacementVersion(1), live)
        .status()
        .code();
  };
  EXPECT_EQ(plan({0}), absl::StatusCode::kOk);
  EXPECT_EQ(plan({1}), absl::StatusCode::kInvalidArgument);     // dropped
  EXPECT_EQ(plan({2}), absl::StatusCode::kInvalidArgument);     // no such row
  EXPECT_EQ(plan({0, 0}), absl::StatusCode::kInvalidArgument);  // twice
  table.expert_id[0] = ExpertId(1);
  EXPECT_EQ(plan({}), absl::StatusCode::kInvalidArgument);
  table.expert_id[0] = ExpertId(0);
  table.token_id[0] = 2;
  EXPECT_EQ(plan({}), absl::StatusCode::kInvalidArgument);
}

TEST(DispatchPlan, PacksTheThreeTokenExampleInTheGivenOrder) {
  const nlohmann::json file = routing::LoadRoutingFixture("dispatch_combine");
  const nlohmann::json& d = file["dispatch_combine"];
  routing::RouteTable table;
  table.Clear(3, 3, 2);
  for (const auto& r : d["routes"]) {
    table.Add(r["token"], r["slot"], ExpertId(r["expert"].get<uint32_t>()),
              r["gate"].get<float>());
  }
  placement::LayerPlacement placement{
      LayerIndex(0), {3, std::vector<placement::Replica>{{WorkerId(0), 0}}}};
  const std::vector<WorkerId> live = {WorkerId(0)};
  const auto plan =
      PlanDispatch(table, {}, placement, PlacementVersion(1), live);
  ASSERT_TRUE(plan.ok());
  ASSERT_EQ(plan->shares.size(), 1u);
  std::vector<uint32_t> expected;
  for (const auto& p : d["packed"]) {
    expected.push_back(static_cast<uint32_t>(
        std::stoul(p["route"].get<std::string>().substr(1))));
  }
  EXPECT_EQ(plan->shares[0].routes, expected);
  EXPECT_EQ(plan->shares[0].rows, (std::vector<uint32_t>{0, 1, 2}));
}

}  // namespace
}  // namespace trunkline::dispatch
