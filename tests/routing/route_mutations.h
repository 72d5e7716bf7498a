#pragma once

// Layers with one thing wrong each, as the failure lists of the contracts have
// them, and who misses which.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "routing/route_validator.h"
#include "tests/routing/recorded_layer.h"

namespace trunkline::routing {

using MakeLayer = RecordedLayer (*)();
using Contract = RouteContract;

struct Mutation {
  std::string name;  // as the failure lists have it
  MakeLayer make;
  Contract broken;
  std::function<void(RecordedLayer&)> change;
};

inline uint32_t FirstRoute(const LayerRecord& r, RouteFate fate) {
  for (uint32_t i = 0; i < r.table.size(); ++i) {
    if (r.table.fate[i] == fate) return i;
  }
  ADD_FAILURE() << "no such route";
  return 0;
}

template <typename T>
inline void EraseAt(std::vector<T>* v, size_t i) {
  v->erase(v->begin() + static_cast<int64_t>(i));
}

inline void EraseRoute(LayerRecord* r, size_t i) {
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
inline void Follow(RecordedLayer& l) {
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
inline void AdmitOtherwise(
    RecordedLayer& l, const std::function<void(AdmissionPolicy&)>& change) {
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

inline void RouteOtherwise(RecordedLayer& l,
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

inline std::vector<Mutation> DispatchMutations() {
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

inline std::vector<Mutation> CapacityMutations() {
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

inline std::vector<Mutation> RouterMutations() {
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

inline std::vector<Mutation> FamilyMutations() {
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

inline std::vector<Mutation> ClusterMutations() {
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

inline std::vector<Mutation> AllMutations() {
  std::vector<Mutation> all;
  for (auto make : {DispatchMutations, CapacityMutations, RouterMutations,
                    FamilyMutations, ClusterMutations}) {
    for (Mutation& m : make()) all.push_back(std::move(m));
  }
  return all;
}

// The mutations that these checks do not refuse by the contract they break.
inline std::vector<std::string> Missed(std::span<const RouteCheck> checks) {
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

}  // namespace trunkline::routing
