#include "routing/route_validator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "tests/routing/recorded_layer.h"
#include "tests/routing/route_mutations.h"

namespace trunkline::routing {
namespace {

using ::testing::HasSubstr;

TEST(RouteValidator, AcceptsLayersThatAreRight) {
  for (MakeLayer make : {DroplessLayer, CapacityLayer, SwitchLayer, BlockLayer,
                         ExpertChoiceLayer, NoisyLayer, NemotronLayer}) {
    const RecordedLayer layer = make();
    const ExecutionEvidence evidence = layer.rows.View();
    const absl::Status status = ValidateLayer(layer.record, &evidence);
    EXPECT_TRUE(status.ok()) << layer.record.policy.name << ": " << status;
    EXPECT_TRUE(ValidateLayer(layer.record).ok());
  }
}

TEST(RouteValidator, RefusesEveryMutationByTheContractItBreaks) {
  EXPECT_THAT(Missed(LayerChecks()), ::testing::IsEmpty());
  EXPECT_GT(AllMutations().size(), 55u);
}

TEST(RouteValidator, NamesTheContractInItsStatus) {
  RecordedLayer layer = DroplessLayer();
  layer.record.expert_local_row[2] = 9;
  const absl::Status status = ValidateLayer(layer.record);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("broken contract \"local rows\""));
}

// The lists of the fixtures, so that none is forgotten here. Those about bytes,
// soft assignment and comparison of policies are in the tests named for them.
TEST(RouteValidator, HasAMutationForEveryOneThatTheFixturesList) {
  std::set<std::string> elsewhere = {
      "soft moe normalized on one axis", "soft assignment across requests",
      "invented speed-up", "quality or runtime claim attached to a count",
      "false equivalence claim"};
  std::set<std::string> here;
  for (const Mutation& m : AllMutations()) here.insert(m.name);
  const auto capacity = LoadRoutingFixture("capacity");
  const auto router = LoadRoutingFixture("router_policy");
  const auto matrix = LoadRoutingFixture("matrix_8x4");
  const auto dispatch = LoadRoutingFixture("dispatch_combine");
  for (const nlohmann::json& list :
       {capacity["negative_mutations"], router["negative_mutations"],
        matrix["variants"]["negative_mutations"],
        dispatch["dispatch_combine"]["failure_mutations"]}) {
    ASSERT_FALSE(list.empty());
    for (const auto& name : list) {
      EXPECT_TRUE(here.contains(name.get<std::string>()) ||
                  elsewhere.contains(name.get<std::string>()))
          << name;
    }
  }
}

// --- Faults in the validator itself: each must make the table above fail.

std::vector<RouteCheck> Without(Contract contract) {
  std::vector<RouteCheck> checks = LayerChecks();
  std::erase_if(checks,
                [&](const RouteCheck& c) { return c.contract == contract; });
  return checks;
}

std::vector<RouteCheck> With(Contract contract,
                             const std::function<std::optional<std::string>(
                                 const RouteCheck&, const LayerRecord&,
                                 const ExecutionEvidence*)>& faulty) {
  std::vector<RouteCheck> checks = LayerChecks();
  for (RouteCheck& c : checks) {
    if (c.contract != contract) continue;
    const RouteCheck right = c;
    c.broken = [right, faulty](const LayerRecord& r,
                               const ExecutionEvidence* e) {
      return faulty(right, r, e);
    };
  }
  return checks;
}

TEST(RouteValidatorFaults, AMissingCheckIsFound) {
  int found = 0;
  for (const RouteCheck& check : LayerChecks()) {
    EXPECT_FALSE(Missed(Without(check.contract)).empty())
        << "nobody misses " << Name(check.contract);
    ++found;
  }
  EXPECT_EQ(found, 24);
}

TEST(RouteValidatorFaults, AWeakerCheckIsFound) {
  const auto cut = [](const RouteCheck& c, const LayerRecord& r,
                      const ExecutionEvidence* e) {
    LayerRecord shorter = r;  // looks at all but the last handed-over route
    if (!shorter.physical.empty()) shorter.physical.pop_back();
    if (!shorter.handoff_routes.empty()) {
      shorter.handoff_routes.pop_back();
      shorter.expert_local_row.pop_back();
    }
    return c.broken(shorter, e);
  };
  const auto neighbours_only =
      [](const RouteCheck&, const LayerRecord& r,
         const ExecutionEvidence*) -> std::optional<std::string> {
    // Compares for equality where the order is promised.
    for (size_t i = 1; i < r.table.token_id.size(); ++i) {
      if (r.table.token_id[i] == r.table.token_id[i - 1] &&
          r.table.selected_slot[i] == r.table.selected_slot[i - 1]) {
        return "twice";
      }
    }
    return std::nullopt;
  };
  const auto tolerant_combine =
      [](const RouteCheck& c, const LayerRecord& r,
         const ExecutionEvidence* e) -> std::optional<std::string> {
    // Takes what is nearly right.
    std::vector<float> nudged(e->combined.begin(), e->combined.end());
    for (float& y : nudged) y = std::nextafter(y, -1e9f);
    ExecutionEvidence near = *e;
    near.combined = nudged;
    const auto exact = c.broken(r, e);
    if (!exact) return exact;
    for (size_t i = 0; i < nudged.size(); ++i) {
      std::vector<float> one(e->combined.begin(), e->combined.end());
      one[i] = nudged[i];
      near.combined = one;
      if (!c.broken(r, &near)) return std::nullopt;
    }
    return exact;
  };
  const auto gates_only = [](const RouteCheck& c, const LayerRecord& r,
                             const ExecutionEvidence* e) {
    // Padding rows are held against their gates and not their values.
    std::vector<float> zero(e->input.size(), 0.0f);
    ExecutionEvidence blind = *e;
    blind.input = zero;
    return c.broken(r, &blind);
  };
  const auto first_element = [](const RouteCheck& c, const LayerRecord& r,
                                const ExecutionEvidence* e) {
    // The last element of every row is taken on trust.
    std::vector<float> input(e->input.begin(), e->input.end());
    RowLayout layout;
    if (LayOutRows(r.table, r.representation, &layout).ok()) {
      for (size_t row = 0; row < layout.route_of_row.size(); ++row) {
        if (layout.route_of_row[row] == kPaddingRow) continue;
        const size_t token = r.table.token_id[layout.route_of_row[row]];
        input[row * 3 + 2] = e->hidden[token * 3 + 2];
      }
    }
    ExecutionEvidence blind = *e;
    blind.input = input;
    return c.broken(r, &blind);
  };
  const auto totals_only = [](const RouteCheck& c, const LayerRecord& r,
                              const ExecutionEvidence* e) {
    // Dropped ids are not compared.
    LayerRecord blind = r;
    blind.dropped_routes.clear();
    for (uint32_t i = 0; i < r.table.size(); ++i) {
      if (r.table.fate[i] == RouteFate::kDropped) {
        blind.dropped_routes.push_back(i);
      }
    }
    return c.broken(blind, e);
  };
  const auto sets_only = [](const RouteCheck& c, const LayerRecord& r,
                            const ExecutionEvidence* e) {
    // A token's experts are compared as a set.
    LayerRecord sorted = r;
    RouteTable again;
    if (RouteByRecord(r.policy, r.Input(), &again).ok() &&
        again.size() == r.table.size()) {
      const auto k = static_cast<size_t>(std::max<int64_t>(1, r.policy.top_k));
      for (size_t b = 0; b + k <= again.expert_id.size(); b += k) {
        std::multiset<ExpertId> x(
            again.expert_id.begin() + static_cast<int64_t>(b),
            again.expert_id.begin() + static_cast<int64_t>(b + k));
        std::multiset<ExpertId> y(
            r.selected_expert.begin() + static_cast<int64_t>(b),
            r.selected_expert.begin() + static_cast<int64_t>(b + k));
        if (x != y) continue;
        std::copy_n(again.expert_id.begin() + static_cast<int64_t>(b), k,
                    sorted.selected_expert.begin() + static_cast<int64_t>(b));
      }
    }
    return c.broken(sorted, e);
  };
  const auto no_version = [](const RouteCheck& c, const LayerRecord& r,
                             const ExecutionEvidence* e) {
    LayerRecord blind = r;
    blind.placement_version = PlacementVersion(1);
    return c.broken(blind, e);
  };
  const auto sent_is_done = [](const RouteCheck& c, const LayerRecord& r,
                               const ExecutionEvidence* e) {
    LayerRecord blind = r;
    for (PhysicalRoute& p : blind.physical) {
      if (p.state == Completion::kSent) p.state = Completion::kDone;
    }
    return c.broken(blind, e);
  };
  const auto counts_only = [](const RouteCheck& c, const LayerRecord& r,
                              const ExecutionEvidence* e) {
    LayerRecord blind = r;  // expert counts are not compared
    blind.expert_counts.assign(blind.expert_counts.size(), 0);
    for (uint32_t i : blind.handoff_routes) {
      ++blind.expert_counts[blind.table.expert_id[i].value];
    }
    return c.broken(blind, e);
  };
  const std::vector<std::pair<std::string, std::vector<RouteCheck>>> faults = {
      {"hand-off without the last route", With(Contract::kHandoffRoutes, cut)},
      {"completion without the last route", With(Contract::kCompletion, cut)},
      {"keys compared with neighbours only",
       With(Contract::kStableKey, neighbours_only)},
      {"combine within one unit in the last place",
       With(Contract::kCombine, tolerant_combine)},
      {"padding by gate only", With(Contract::kPadding, gates_only)},
      {"rows without their last element",
       With(Contract::kRowIdentity, first_element)},
      {"dropped ids not compared", With(Contract::kConservation, totals_only)},
      {"selection as a set", With(Contract::kSelection, sets_only)},
      {"version not looked at", With(Contract::kPhysicalPlan, no_version)},
      {"sent taken for done", With(Contract::kCompletion, sent_is_done)},
      {"expert counts not compared", With(Contract::kOffsets, counts_only)},
  };
  for (const auto& [name, checks] : faults) {
    EXPECT_FALSE(Missed(checks).empty()) << name;
  }
}

}  // namespace
}  // namespace trunkline::routing
