#include "routing/route_validator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "tests/routing/recorded_layer.h"

namespace trunkline::routing {
namespace {

using ::testing::HasSubstr;
using MakeLayer = RecordedLayer (*)();
using Contract = RouteContract;

struct Mutation {
  std::string name;  // as the failure lists have it
  MakeLayer make;
  Contract broken;
  std::function<void(RecordedLayer&)> change;
};

uint32_t FirstRoute(const LayerRecord& r, RouteFate fate) {
  for (uint32_t i = 0; i < r.table.size(); ++i) {
    if (r.table.fate[i] == fate) return i;
  }
  ADD_FAILURE() << "no such route";
  return 0;
}

template <typename T>
void EraseAt(std::vector<T>* v, size_t i) {
  v->erase(v->begin() + static_cast<int64_t>(i));
}

void EraseRoute(LayerRecord* r, size_t i) {
  EraseAt(&r->table.token_id, i);
  EraseAt(&r->table.selected_slot, i);
  EraseAt(&r->table.expert_id, i);
  EraseAt(&r->table.gate, i);
  EraseAt(&r->table.fate, i);
  EraseAt(&r->selected_expert, i);
  EraseAt(&r->selected_gate, i);
}

// Gates, hand-off and rows as they would follow from a changed table, so that
// only what decided it can be found wrong.
void Follow(RecordedLayer& l) {
  LayerRecord& r = l.record;
  RowLayout layout;
  if (r.representation.form == RowForm::kFixed) {
    r.representation.capacity = 16;
  }
  ASSERT_TRUE(LayOutRows(r.table, r.representation, &layout).ok());
  r.selected_counts.assign(static_cast<size_t>(r.table.experts), 0);
  r.executed_counts = r.selected_counts;
  r.dropped_routes.clear();
  r.handoff_routes.clear();
  r.expert_local_row.clear();
  r.prefix_offsets.assign(1, 0);
  r.expert_counts = layout.expert_rows;
  for (uint32_t i = 0; i < r.table.size(); ++i) {
    ++r.selected_counts[r.selected_expert[i].value];
    if (r.table.fate[i] == RouteFate::kAccepted) {
      ++r.executed_counts[r.table.expert_id[i].value];
    }
    if (r.table.fate[i] == RouteFate::kDropped) r.dropped_routes.push_back(i);
  }
  for (size_t e = 0; e < r.expert_counts.size(); ++e) {
    for (uint32_t i = 0; i < r.expert_counts[e]; ++i) {
      r.handoff_routes.push_back(
          layout.route_of_row[layout.expert_begin[e] + i]);
      r.expert_local_row.push_back(i);
    }
    r.prefix_offsets.push_back(static_cast<uint32_t>(r.handoff_routes.size()));
  }
  r.represented_rows = layout.represented_rows();
  r.tail_rows = layout.tail_rows();
  FillPhysical(&r);
  FillRows(r, &l.rows);
}

// The admission that `change` makes of the record's own, with all that follows.
void AdmitOtherwise(RecordedLayer& l,
                    const std::function<void(AdmissionPolicy&)>& change) {
  LayerRecord& r = l.record;
  AdmissionPolicy other = r.admission;
  change(other);
  r.table.expert_id = r.selected_expert;
  r.table.gate = r.selected_gate;
  for (RouteFate& f : r.table.fate) {
    if (f != RouteFate::kNotDrawn) f = RouteFate::kAccepted;
  }
  AdmissionReport report;
  AdmissionInput input;
  input.scores = r.values;
  ASSERT_TRUE(AdmitRoutes(other, input, &r.table, &report).ok());
  Follow(l);
}

void RouteOtherwise(RecordedLayer& l,
                    const std::function<void(LayerRecord&)>& change) {
  LayerRecord& r = l.record;
  LayerRecord other = r;
  change(other);
  RouteTable table;
  ASSERT_TRUE(RouteByRecord(other.policy, other.Input(), &table).ok());
  r.table = table;
  r.selected_expert = table.expert_id;
  r.selected_gate = table.gate;
  Follow(l);
}

std::vector<Mutation> DispatchMutations() {
  return {
      {"duplicate key", DroplessLayer, Contract::kStableKey,
       [](auto& l) {
         l.record.table.selected_slot[1] = l.record.table.selected_slot[0];
       }},
      {"duplicate key, further apart", DroplessLayer, Contract::kStableKey,
       [](auto& l) {
         l.record.table.token_id[5] = 0;
         l.record.table.selected_slot[5] = 0;
       }},
      {"omitted route", DroplessLayer, Contract::kDegree,
       [](auto& l) {
         EraseRoute(&l.record, 6);
         Follow(l);
       }},
      {"the same expert twice for a token", DroplessLayer,
       Contract::kDistinctExperts,
       [](auto& l) {
         l.record.table.expert_id[1] = l.record.table.expert_id[0];
         l.record.selected_expert = l.record.table.expert_id;
         Follow(l);
       }},
      {"omitted accepted route", DroplessLayer, Contract::kHandoffRoutes,
       [](auto& l) {
         l.record.handoff_routes.pop_back();
         l.record.expert_local_row.pop_back();
         l.record.physical.pop_back();
       }},
      {"accepted route handed over twice", DroplessLayer,
       Contract::kHandoffRoutes,
       [](auto& l) {
         l.record.handoff_routes[1] = l.record.handoff_routes[0];
       }},
      {"dropped route packed", CapacityLayer, Contract::kHandoffRoutes,
       [](auto& l) {
         l.record.handoff_routes.back() =
             FirstRoute(l.record, RouteFate::kDropped);
       }},
      {"packed rows out of order", DroplessLayer, Contract::kHandoffOrder,
       [](auto& l) {
         std::swap(l.record.handoff_routes[0], l.record.handoff_routes[1]);
       }},
      {"hole in expert-local rows", DroplessLayer, Contract::kLocalRows,
       [](auto& l) { ++l.record.expert_local_row[2]; }},
      {"offsets that do not ascend", DroplessLayer, Contract::kOffsets,
       [](auto& l) {
         std::swap(l.record.prefix_offsets[1], l.record.prefix_offsets[2]);
       }},
      {"count that is not the rows'", DroplessLayer, Contract::kOffsets,
       [](auto& l) { ++l.record.expert_counts[3]; }},
      {"first offset not zero", DroplessLayer, Contract::kOffsets,
       [](auto& l) { l.record.prefix_offsets[0] = 1; }},
      {"row paired with another token's hidden", DroplessLayer,
       Contract::kRowIdentity,
       [](auto& l) {
         std::swap_ranges(l.rows.input.begin(), l.rows.input.begin() + 3,
                          l.rows.input.begin() + 3);
       }},
      {"last packed row is another token's", DroplessLayer,
       Contract::kRowIdentity, [](auto& l) { l.rows.input.back() += 1.0f; }},
      {"row paired with another slot's gate", DroplessLayer,
       Contract::kRowGates,
       [](auto& l) {
         // Rows 0 and 2 are routes with different gates of expert 0.
         std::swap(l.rows.row_gate[0], l.rows.row_gate[2]);
       }},
      {"overwrite instead of add", DroplessLayer, Contract::kCombine,
       [](auto& l) {
         // Token 7's last contribution alone: expert 1, the last of its rows.
         for (size_t i = 0; i < 3; ++i) {
           l.rows.combined[7 * 3 + i] =
               l.rows.row_gate[10] * l.rows.output[10 * 3 + i];
         }
       }},
      {"P^T treated as an inverse when k>1", DroplessLayer, Contract::kCombine,
       [](auto& l) {
         // The mean over a token's rows, which undoes a gather, not a dispatch.
         for (float& y : l.rows.combined) y = y / 2.0f;
       }},
      {"added in another order", DroplessLayer, Contract::kCombine,
       [](auto& l) {
         // One bit is enough.
         l.rows.combined[4] = std::nextafter(l.rows.combined[4], 1e9f);
       }},
      {"1 in a padded dispatch slot", BlockLayer, Contract::kPadding,
       [](auto& l) { l.rows.input[6 * 3] = 1.0f; }},
      {"gate in a padded dispatch slot", BlockLayer, Contract::kPadding,
       [](auto& l) { l.rows.row_gate[6] = 1.0f; }},
      {"silent renormalization after a drop", CapacityLayer,
       Contract::kGatesKept,
       [](auto& l) {
         // Token 2 lost its second route; its first takes all.
         l.record.table.gate[4] = 1.0f;
         FillRows(l.record, &l.rows);
       }},
  };
}

std::vector<Mutation> CapacityMutations() {
  return {
      {"group identity hidden", CapacityLayer, Contract::kGroupIdentity,
       [](auto& l) { l.record.group_of_token.clear(); }},
      {"implicit candidate group", CapacityLayer, Contract::kGroupIdentity,
       [](auto& l) {
         l.record.admission.group_tokens = 8;
         l.record.group_of_token[7] = 1;
       }},
      {"rounding rule changed", CapacityLayer, Contract::kAdmission,
       [](auto& l) {
         // ceil(1.1 x 4) is 5 rows; the layer ran with 4.
         l.record.admission.capacity_factor = 1.1;
       }},
      {"tie-breakers omitted", SwitchLayer, Contract::kAdmission,
       [](auto& l) {
         // Who comes first among equals was left to chance.
         AdmitOtherwise(l, [](AdmissionPolicy& p) {
           p.arbitration = Arbitration::kSeededRandom;
           p.seed = 3;
         });
       }},
      {"padding counted as admission", BlockLayer, Contract::kConservation,
       [](auto& l) {
         l.record.executed_counts = {8, 8, 4, 4};
       }},
      {"outer residual called an expert", SwitchLayer, Contract::kCombine,
       [](auto& l) {
         std::copy_n(l.rows.hidden.begin() + 12, 3,
                     l.rows.combined.begin() + 12);
       }},
      {"reroute without a weight rule", CapacityLayer, Contract::kAdmission,
       [](auto& l) {
         l.record.admission.overflow = Overflow::kReroute;
         l.record.admission.candidates = RerouteCandidates::kNextBestScore;
       }},
      {"dropping path called dropless", CapacityLayer, Contract::kDropless,
       [](auto& l) { l.record.admission = AdmissionPolicy(); }},
      {"route mass drift", DroplessLayer, Contract::kGatesKept,
       [](auto& l) {
         for (float& g : l.record.table.gate) g *= 0.99f;
         FillRows(l.record, &l.rows);
       }},
      {"negative counts", DroplessLayer, Contract::kConservation,
       [](auto& l) { l.record.selected_counts[2] = -3; }},
      {"capacity and drop claim disagree", CapacityLayer,
       Contract::kConservation,
       [](auto& l) { l.record.dropped_routes.pop_back(); }},
      {"invalid block size", BlockLayer, Contract::kRepresentation,
       [](auto& l) { l.record.representation.block_rows = 0; }},
      {"block size other than the rows'", BlockLayer, Contract::kRepresentation,
       [](auto& l) { l.record.representation.block_rows = 2; }},
      {"accepted although there was no room", CapacityLayer,
       Contract::kAdmission,
       [](auto& l) {
         l.record.table.fate[FirstRoute(l.record, RouteFate::kDropped)] =
             RouteFate::kAccepted;
         Follow(l);
       }},
  };
}

std::vector<Mutation> RouterMutations() {
  return {
      {"stored router read as [d,E]", DroplessLayer, Contract::kSelection,
       [](auto& l) {
         std::vector<float> t(32);
         for (size_t i = 0; i < 32; ++i) {
           t[i] = l.record.values[(i % 8) * 4 + i / 8];
         }
         RouteOtherwise(l, [&](LayerRecord& r) { r.values = t; });
       }},
      {"wrong expert count", DroplessLayer, Contract::kShapes,
       [](auto& l) { l.record.policy.experts = 5; }},
      {"softmax over tokens", NoisyLayer, Contract::kSelectedGates,
       [](auto& l) {
         for (size_t s = 0; s < 16; ++s) l.record.selected_gate[s] = 0.125f;
         l.record.table.gate = l.record.selected_gate;
         FillRows(l.record, &l.rows);
       }},
      {"renormalization skipped", DroplessLayer, Contract::kSelectedGates,
       [](auto& l) {
         RouteOtherwise(l, [](LayerRecord& r) {
           r.policy.gate_domain = GateDomain::kScore;
         });
       }},
      {"changed precision or cast point", NoisyLayer, Contract::kSelectedGates,
       [](auto& l) {
         l.record.policy.precision = RouterPrecision::kBF16Logits;
       }},
      {"invented stable tie rule", DroplessLayer, Contract::kSelection,
       [](auto& l) {
         // Token 7's four scores are equal: the higher ids are taken.
         l.record.table.expert_id[14] = ExpertId(3);
         l.record.table.expert_id[15] = ExpertId(2);
         l.record.selected_expert = l.record.table.expert_id;
         Follow(l);
       }},
      {"no tie rule", DroplessLayer, Contract::kSelection,
       [](auto& l) { l.record.policy.tie = TieRule::kUnspecified; }},
      {"jitter drift", NoisyLayer, Contract::kSelectedGates,
       [](auto& l) {
         for (size_t i = 0; i < 4; ++i) {
           l.record.noise[i] += 0.001f * static_cast<float>(i);
         }
       }},
      {"wrong selected ids", NemotronLayer, Contract::kSelection,
       [](auto& l) {
         std::swap(l.record.table.expert_id[0], l.record.table.expert_id[1]);
         l.record.selected_expert = l.record.table.expert_id;
         Follow(l);
       }},
      {"bias used as a weight", NemotronLayer, Contract::kSelectedGates,
       [](auto& l) {
         for (size_t i = 0; i < l.record.selected_gate.size(); ++i) {
           l.record.selected_gate[i] +=
               l.record.bias[l.record.selected_expert[i].value];
         }
         l.record.table.gate = l.record.selected_gate;
         FillRows(l.record, &l.rows);
       }},
      {"group limit forgotten", NemotronLayer, Contract::kSelection,
       [](auto& l) {
         RouteOtherwise(l, [](LayerRecord& r) { r.policy.topk_group = 4; });
       }},
      {"gshard second route made deterministic", CapacityLayer,
       Contract::kSelection, [](auto& l) { l.record.draws.assign(8, 0.999); }},
      {"route of a token that is padding", DroplessLayer, Contract::kShapes,
       [](auto& l) { l.record.valid_token[3] = 0; }},
  };
}

std::vector<Mutation> FamilyMutations() {
  return {
      {"switch dense fallback", SwitchLayer, Contract::kCombine,
       [](auto& l) { l.rows.combined[4 * 3] = 0.5f; }},
      {"expert choice with fixed token degree", ExpertChoiceLayer,
       Contract::kDegree,
       [](auto& l) {
         LayerRecord top2 = DroplessLayer().record;
         l.record.table = top2.table;
         l.record.selected_expert = top2.selected_expert;
         l.record.selected_gate = top2.selected_gate;
         Follow(l);
       }},
      {"mean degree read as a guarantee", ExpertChoiceLayer,
       Contract::kCoverageClaim,
       [](auto& l) { l.record.claims_every_token_covered = true; }},
      {"megablocks as selector", BlockLayer, Contract::kDropless,
       [](auto& l) {
         // Routes beyond whole blocks are dropped to have no tail.
         for (uint32_t i : {11u, 13u}) {
           l.record.table.fate[i] = RouteFate::kDropped;
         }
         Follow(l);
       }},
      {"padding-free block claim", BlockLayer, Contract::kPaddingClaim,
       [](auto& l) { l.record.claims_no_padding = true; }},
      {"false equal-budget claim", CapacityLayer, Contract::kConservation,
       [](auto& l) {
         l.record.executed_counts = {4, 4, 4, 4};
       }},
  };
}

std::vector<Mutation> ClusterMutations() {
  return {
      {"no placement version", DroplessLayer, Contract::kPhysicalPlan,
       [](auto& l) { l.record.placement_version = PlacementVersion(0); }},
      {"a placement version that was not in use", DroplessLayer,
       Contract::kPhysicalPlan,
       [](auto& l) {
         l.record.physical[3].placement_version = PlacementVersion(8);
       }},
      {"replica answering for another expert", DroplessLayer,
       Contract::kPhysicalPlan,
       [](auto& l) { l.record.physical[0].worker = WorkerId(11); }},
      {"a row beyond the frame", DroplessLayer, Contract::kPhysicalPlan,
       [](auto& l) { l.record.physical[0].send_offset = 99; }},
      {"a row sent twice to a worker", DroplessLayer, Contract::kPhysicalPlan,
       [](auto& l) {
         // Token 2 has experts 2 and 0, both on worker 10.
         for (size_t i = 0; i < l.record.physical.size(); ++i) {
           if (l.record.handoff_routes[i] == 4) {
             l.record.physical[i].send_offset = 6;
           }
         }
       }},
      {"a row of another token", DroplessLayer, Contract::kPhysicalPlan,
       [](auto& l) {
         l.record.physical[1].send_offset = l.record.physical[0].send_offset;
       }},
      {"executed on no worker", DroplessLayer, Contract::kPhysicalPlan,
       [](auto& l) { l.record.physical[4].worker = WorkerId(); }},
      {"repeated response", DroplessLayer, Contract::kCompletion,
       [](auto& l) {
         l.record.physical[1].receive_offset =
             l.record.physical[0].receive_offset;
       }},
      {"lost response", DroplessLayer, Contract::kCompletion,
       [](auto& l) { l.record.physical[5].state = Completion::kSent; }},
      {"failed route counted as executed", DroplessLayer, Contract::kCompletion,
       [](auto& l) { l.record.physical.back().state = Completion::kFailed; }},
  };
}

std::vector<Mutation> AllMutations() {
  std::vector<Mutation> all;
  for (auto make : {DispatchMutations, CapacityMutations, RouterMutations,
                    FamilyMutations, ClusterMutations}) {
    for (Mutation& m : make()) all.push_back(std::move(m));
  }
  return all;
}

// The mutations that these checks do not refuse by the contract they break.
std::vector<std::string> Missed(std::span<const RouteCheck> checks) {
  std::vector<std::string> missed;
  for (const Mutation& m : AllMutations()) {
    RecordedLayer layer = m.make();
    m.change(layer);
    const ExecutionEvidence evidence = layer.rows.View();
    const auto found = FindViolation(checks, layer.record, &evidence);
    if (!found || found->contract != m.broken) {
      missed.push_back(
          m.name + ": " +
          (found ? std::string(Name(found->contract)) + ", " + found->detail
                 : std::string("accepted")));
    }
  }
  return missed;
}

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
