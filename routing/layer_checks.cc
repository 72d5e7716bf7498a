#include "routing/layer_checks.h"

#include <algorithm>
#include <bit>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"

namespace trunkline::routing {
namespace {

using Broken = std::optional<std::string>;

template <typename... Args>
Broken Because(const Args&... why) {
  return absl::StrCat(why...);
}

std::string KeyText(const RouteTable& t, size_t r) {
  return absl::StrCat("token ", t.token_id[r], ", slot ", t.selected_slot[r]);
}

bool SameBits(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

Broken StableKey(const LayerRecord& r, const ExecutionEvidence*) {
  const RouteTable& t = r.table;
  for (size_t i = 1; i < t.token_id.size(); ++i) {
    if (std::pair(t.token_id[i - 1], t.selected_slot[i - 1]) <
        std::pair(t.token_id[i], t.selected_slot[i])) {
      continue;
    }
    return Because("route ", i, " (", KeyText(t, i), ") does not come after (",
                   KeyText(t, i - 1), ")");
  }
  return std::nullopt;
}

Broken Degree(const LayerRecord& r, const ExecutionEvidence*) {
  if (r.policy.owner == SelectionOwner::kToken) {
    std::vector<int64_t> degree(static_cast<size_t>(r.table.rows), 0);
    for (uint32_t token : r.table.token_id) ++degree[token];
    for (size_t t = 0; t < degree.size(); ++t) {
      if (degree[t] != r.policy.top_k) {
        return Because("token ", t, " has ", degree[t], " routes, not ",
                       r.policy.top_k);
      }
    }
    return std::nullopt;
  }
  std::vector<int64_t> degree(static_cast<size_t>(r.table.experts), 0);
  for (ExpertId e : r.selected_expert) ++degree[e.value];
  for (size_t e = 0; e < degree.size(); ++e) {
    if (degree[e] != r.policy.budget) {
      return Because("expert ", e, " has ", degree[e], " tokens, not ",
                     r.policy.budget);
    }
  }
  return std::nullopt;
}

Broken DistinctExperts(const LayerRecord& r, const ExecutionEvidence*) {
  std::set<std::pair<uint32_t, uint32_t>> seen;
  for (size_t i = 0; i < r.table.token_id.size(); ++i) {
    if (r.table.fate[i] != RouteFate::kAccepted) continue;
    const uint32_t expert = r.table.expert_id[i].value;
    if (!seen.emplace(r.table.token_id[i], expert).second) {
      return Because("token ", r.table.token_id[i], " has expert ", expert,
                     " twice");
    }
  }
  return std::nullopt;
}

// What the recorded policy makes of the recorded input.
std::optional<RouteTable> RouteAgain(const LayerRecord& r, std::string* why) {
  RouteTable table;
  absl::Status status;
  const auto fast = ServingPolicy(r.policy);
  if (fast.ok() && r.transformed) {
    status = SelectRoutes(*fast, r.values, r.table.rows, r.bias, &table);
  } else {
    status = RouteByRecord(r.policy, r.Input(), &table);
  }
  if (status.ok()) return table;
  *why = std::string(status.message());
  return std::nullopt;
}

Broken Selection(const LayerRecord& r, const ExecutionEvidence*) {
  std::string why;
  const auto again = RouteAgain(r, &why);
  if (!again) return why;
  if (again->size() != r.table.size()) {
    return Because("policy ", r.policy.name, " makes ", again->size(),
                   " routes, the record has ", r.table.size());
  }
  for (size_t i = 0; i < again->token_id.size(); ++i) {
    if (again->token_id[i] != r.table.token_id[i] ||
        again->selected_slot[i] != r.table.selected_slot[i] ||
        again->expert_id[i] != r.selected_expert[i]) {
      return Because(KeyText(r.table, i), ": policy ", r.policy.name,
                     " chooses expert ", again->expert_id[i].value,
                     ", the record has ", r.selected_expert[i].value);
    }
    if ((again->fate[i] == RouteFate::kNotDrawn) !=
        (r.table.fate[i] == RouteFate::kNotDrawn)) {
      return Because(KeyText(r.table, i),
                     ": the recorded draw and the fate disagree");
    }
  }
  return std::nullopt;
}

Broken SelectedGates(const LayerRecord& r, const ExecutionEvidence*) {
  std::string why;
  const auto again = RouteAgain(r, &why);
  if (!again) return why;
  const size_t count = std::min(again->gate.size(), r.selected_gate.size());
  for (size_t i = 0; i < count; ++i) {
    if (SameBits(again->gate[i], r.selected_gate[i])) continue;
    return Because(KeyText(r.table, i), ": policy ", r.policy.name,
                   " computes the gate ", again->gate[i], ", the record has ",
                   r.selected_gate[i]);
  }
  return std::nullopt;
}

Broken GroupIdentity(const LayerRecord& r, const ExecutionEvidence*) {
  if (r.group_of_token.size() != static_cast<size_t>(r.table.rows)) {
    return Because(r.group_of_token.size(), " group identities for ",
                   r.table.rows, " tokens");
  }
  if (r.admission.group_tokens == 0) return std::nullopt;
  for (size_t t = 0; t < r.group_of_token.size(); ++t) {
    const size_t first = t / static_cast<size_t>(r.admission.group_tokens) *
                         static_cast<size_t>(r.admission.group_tokens);
    if (r.group_of_token[t] != r.group_of_token[first]) {
      return Because("token ", t, " is in group ", r.group_of_token[t],
                     ", its group of ", r.admission.group_tokens,
                     " tokens begins with group ", r.group_of_token[first]);
    }
  }
  return std::nullopt;
}

Broken Dropless(const LayerRecord& r, const ExecutionEvidence*) {
  if (r.admission.kind != AdmissionKind::kDropless) return std::nullopt;
  for (size_t i = 0; i < r.table.fate.size(); ++i) {
    if (r.table.fate[i] == RouteFate::kDropped) {
      return Because(KeyText(r.table, i),
                     " was dropped by a layer that calls itself dropless");
    }
  }
  return std::nullopt;
}

// The table that the recorded admission makes of the recorded selection.
struct Admitted {
  RouteTable table;
  AdmissionReport report;
};
std::optional<Admitted> AdmitAgain(const LayerRecord& r, std::string* why) {
  Admitted a;
  a.table = r.table;
  a.table.expert_id = r.selected_expert;
  a.table.gate = r.selected_gate;
  for (RouteFate& fate : a.table.fate) {
    if (fate != RouteFate::kNotDrawn) fate = RouteFate::kAccepted;
  }
  absl::Status status = ValidateAdmission(r.admission, r.table.experts);
  AdmissionPolicy by_identity = r.admission;
  by_identity.group_tokens = 0;
  AdmissionInput input;
  input.scores = r.values;
  input.group_of_token = r.group_of_token;
  if (status.ok()) {
    status = AdmitRoutes(by_identity, input, &a.table, &a.report);
  }
  if (status.ok()) return a;
  *why = std::string(status.message());
  return std::nullopt;
}

Broken Admission(const LayerRecord& r, const ExecutionEvidence*) {
  std::string why;
  const auto again = AdmitAgain(r, &why);
  if (!again) return why;
  for (size_t i = 0; i < r.table.fate.size(); ++i) {
    if (again->table.fate[i] != r.table.fate[i]) {
      return Because(
          KeyText(r.table, i), " is ",
          r.table.fate[i] == RouteFate::kAccepted ? "accepted" : "dropped",
          ", the recorded admission decides otherwise");
    }
    if (again->table.expert_id[i] != r.table.expert_id[i]) {
      return Because(KeyText(r.table, i), " runs on expert ",
                     r.table.expert_id[i].value,
                     ", the recorded admission sends it to ",
                     again->table.expert_id[i].value);
    }
  }
  return std::nullopt;
}

Broken GatesKept(const LayerRecord& r, const ExecutionEvidence*) {
  std::string why;
  const auto again = AdmitAgain(r, &why);
  if (!again) return why;
  for (size_t i = 0; i < r.table.gate.size(); ++i) {
    if (SameBits(again->table.gate[i], r.table.gate[i])) continue;
    return Because(KeyText(r.table, i), ": the gate was ", r.selected_gate[i],
                   " and is ", r.table.gate[i], ", overflow action ",
                   Name(r.admission.overflow), " makes it ",
                   again->table.gate[i]);
  }
  return std::nullopt;
}

Broken Conservation(const LayerRecord& r, const ExecutionEvidence*) {
  const auto experts = static_cast<size_t>(r.table.experts);
  std::vector<int64_t> selected(experts, 0);
  std::vector<int64_t> executed(experts, 0);
  std::vector<uint32_t> dropped;
  for (uint32_t i = 0; i < r.table.size(); ++i) {
    ++selected[r.selected_expert[i].value];
    if (r.table.fate[i] == RouteFate::kAccepted) {
      ++executed[r.table.expert_id[i].value];
    } else if (r.table.fate[i] == RouteFate::kDropped) {
      dropped.push_back(i);
    }
  }
  for (size_t e = 0; e < experts; ++e) {
    if (r.selected_counts[e] != selected[e]) {
      return Because("expert ", e, " was selected ", selected[e],
                     " times, counted ", r.selected_counts[e]);
    }
    if (r.executed_counts[e] != executed[e]) {
      return Because("expert ", e, " executes ", executed[e],
                     " routes, counted ", r.executed_counts[e]);
    }
  }
  if (r.dropped_routes != dropped) {
    return Because(dropped.size(), " routes were dropped, ",
                   r.dropped_routes.size(), " are named (or others)");
  }
  return std::nullopt;
}

Broken HandoffRoutes(const LayerRecord& r, const ExecutionEvidence*) {
  std::vector<int> times(r.table.token_id.size(), 0);
  for (uint32_t i : r.handoff_routes) ++times[i];
  for (size_t i = 0; i < times.size(); ++i) {
    const int expected = r.table.fate[i] == RouteFate::kAccepted ? 1 : 0;
    if (times[i] != expected) {
      return Because(KeyText(r.table, i), " is handed over ", times[i],
                     " times, not ", expected);
    }
  }
  return std::nullopt;
}

Broken HandoffOrder(const LayerRecord& r, const ExecutionEvidence*) {
  const RouteTable& t = r.table;
  const auto key = [&](uint32_t i) {
    return std::tuple(t.expert_id[i].value, t.token_id[i], t.selected_slot[i]);
  };
  for (size_t i = 1; i < r.handoff_routes.size(); ++i) {
    if (key(r.handoff_routes[i - 1]) < key(r.handoff_routes[i])) continue;
    return Because("packed row ", i, " (expert ",
                   t.expert_id[r.handoff_routes[i]].value, ", ",
                   KeyText(t, r.handoff_routes[i]),
                   ") does not come after the row before");
  }
  return std::nullopt;
}

Broken LocalRows(const LayerRecord& r, const ExecutionEvidence*) {
  std::vector<uint32_t> next(static_cast<size_t>(r.table.experts), 0);
  for (size_t i = 0; i < r.handoff_routes.size(); ++i) {
    const uint32_t expert = r.table.expert_id[r.handoff_routes[i]].value;
    if (r.expert_local_row[i] != next[expert]) {
      return Because("packed row ", i, " of expert ", expert,
                     " has the local row ", r.expert_local_row[i], ", not ",
                     next[expert]);
    }
    ++next[expert];
  }
  return std::nullopt;
}

Broken Offsets(const LayerRecord& r, const ExecutionEvidence*) {
  std::vector<uint32_t> count(static_cast<size_t>(r.table.experts), 0);
  for (uint32_t i : r.handoff_routes) ++count[r.table.expert_id[i].value];
  if (r.prefix_offsets[0] != 0) {
    return Because("the first offset is ", r.prefix_offsets[0]);
  }
  for (size_t e = 0; e < count.size(); ++e) {
    if (r.expert_counts[e] != count[e]) {
      return Because("expert ", e, " has ", count[e], " rows, counted ",
                     r.expert_counts[e]);
    }
    if (r.prefix_offsets[e + 1] != r.prefix_offsets[e] + count[e]) {
      return Because("the offset after expert ", e, " is ",
                     r.prefix_offsets[e + 1], ", not ",
                     r.prefix_offsets[e] + count[e]);
    }
  }
  return std::nullopt;
}

Broken Representation(const LayerRecord& r, const ExecutionEvidence*) {
  RowLayout layout;
  const absl::Status status = LayOutRows(r.table, r.representation, &layout);
  if (!status.ok()) return std::string(status.message());
  if (r.represented_rows != layout.represented_rows() ||
      r.tail_rows != layout.tail_rows()) {
    return Because("the form ", Name(r.representation.form), " makes ",
                   layout.represented_rows(), " rows, ", layout.tail_rows(),
                   " of them padding; the record says ", r.represented_rows,
                   " and ", r.tail_rows);
  }
  return std::nullopt;
}

Broken CoverageClaim(const LayerRecord& r, const ExecutionEvidence*) {
  if (!r.claims_every_token_covered) return std::nullopt;
  std::vector<bool> covered(static_cast<size_t>(r.table.rows), false);
  for (size_t i = 0; i < r.table.token_id.size(); ++i) {
    if (r.table.fate[i] == RouteFate::kAccepted) {
      covered[r.table.token_id[i]] = true;
    }
  }
  const auto bare = std::find(covered.begin(), covered.end(), false);
  if (bare == covered.end()) return std::nullopt;
  return Because("token ", bare - covered.begin(),
                 " has no accepted route; a mean degree guarantees none");
}

Broken PaddingClaim(const LayerRecord& r, const ExecutionEvidence*) {
  if (!r.claims_no_padding || r.tail_rows == 0) return std::nullopt;
  return Because(r.tail_rows, " of ", r.represented_rows,
                 " rows are padding; dropless is not free of it");
}

// A frame of a layer: its worker, and which of the frames to it.
using FrameKey = std::pair<WorkerId, uint16_t>;

Broken PhysicalPlan(const LayerRecord& r, const ExecutionEvidence*) {
  if (r.physical.empty()) return std::nullopt;
  if (!r.placement_version.valid() || r.placement_version.value == 0) {
    return Because("routes ran under no placement version");
  }
  std::map<uint32_t, std::pair<WorkerId, uint32_t>> home;   // of an expert
  std::map<FrameKey, std::map<uint32_t, uint32_t>> frames;  // token -> row
  for (size_t i = 0; i < r.physical.size(); ++i) {
    const PhysicalRoute& p = r.physical[i];
    const uint32_t route = r.handoff_routes[i];
    const uint32_t expert = r.table.expert_id[route].value;
    if (!p.worker.valid() || !p.origin.valid()) {
      return Because(KeyText(r.table, route), " ran on no worker");
    }
    if (!p.placement_version.valid() || p.placement_version.value == 0 ||
        p.placement_version > r.placement_version) {
      return Because(KeyText(r.table, route), " ran under placement version ",
                     p.placement_version.value, ", the newest in use was ",
                     r.placement_version.value);
    }
    const auto [at, fresh] =
        home.emplace(expert, std::pair(p.worker, p.replica));
    if (!fresh && at->second != std::pair(p.worker, p.replica)) {
      return Because("expert ", expert, " ran on worker ",
                     at->second.first.value, " and on worker ", p.worker.value);
    }
    auto& rows = frames[FrameKey(p.worker, p.attempt)];
    const auto row = rows.emplace(r.table.token_id[route], p.send_offset);
    if (row.first->second != p.send_offset) {
      return Because(KeyText(r.table, route), ": its row was sent to worker ",
                     p.worker.value, " twice in one frame");
    }
  }
  for (const auto& [frame, rows] : frames) {
    uint32_t next = 0;
    for (const auto& [token, row] : rows) {
      if (row == next++) continue;
      return Because("token ", token, " is row ", row, " of a frame to worker ",
                     frame.first.value, " where its place is row ", next - 1);
    }
  }
  return std::nullopt;
}

Broken CompletionOf(const LayerRecord& r, const ExecutionEvidence*) {
  std::set<std::pair<FrameKey, uint32_t>> taken;
  for (size_t i = 0; i < r.physical.size(); ++i) {
    const PhysicalRoute& p = r.physical[i];
    const std::string key = KeyText(r.table, r.handoff_routes[i]);
    if (p.state != Completion::kDone && p.state != Completion::kRetried) {
      return Because(key, " was accepted and did not complete");
    }
    if (!taken.emplace(FrameKey(p.worker, p.attempt), p.receive_offset)
             .second) {
      return Because(key, " shares row ", p.receive_offset, " of worker ",
                     p.worker.value, "'s answer with another route");
    }
  }
  return std::nullopt;
}

Broken TableShape(const LayerRecord& r) {
  const RouteTable& t = r.table;
  const size_t routes = t.token_id.size();
  const auto rows = static_cast<size_t>(t.rows);
  const auto experts = static_cast<size_t>(t.experts);
  if (t.rows < 0 || t.experts < 1 || t.experts != r.policy.experts) {
    return Because(t.rows, " rows, ", t.experts, " experts, the policy has ",
                   r.policy.experts);
  }
  if (t.selected_slot.size() != routes || t.expert_id.size() != routes ||
      t.gate.size() != routes || t.fate.size() != routes ||
      r.selected_expert.size() != routes || r.selected_gate.size() != routes) {
    return Because("the arrays of ", routes, " routes differ in length");
  }
  if (r.values.size() != rows * experts || r.valid_token.size() != rows ||
      r.request_of_token.size() != rows) {
    return Because(r.values.size(), " scores for ", rows, " tokens and ",
                   experts, " experts, or a token without its marks");
  }
  if (r.selected_counts.size() != experts ||
      r.executed_counts.size() != experts ||
      r.expert_counts.size() != experts ||
      r.prefix_offsets.size() != experts + 1) {
    return Because("a count for each of ", experts, " experts is missing");
  }
  for (size_t i = 0; i < routes; ++i) {
    if (t.token_id[i] >= rows || t.expert_id[i].value >= experts ||
        r.selected_expert[i].value >= experts) {
      return Because("route ", i, " names token ", t.token_id[i],
                     " and expert ", t.expert_id[i].value, " of ", rows,
                     " tokens and ", experts, " experts");
    }
    if (r.valid_token[t.token_id[i]] == 0) {
      return Because("route ", i, " is of a token that is not valid");
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> BrokenShape(const LayerRecord& r,
                                       const ExecutionEvidence* e) {
  if (Broken why = TableShape(r)) return why;
  const size_t routes = r.table.token_id.size();
  const size_t handed = r.handoff_routes.size();
  if (r.expert_local_row.size() != handed ||
      (!r.physical.empty() && r.physical.size() != handed)) {
    return Because("the arrays of ", handed,
                   " handed-over routes differ in length");
  }
  for (uint32_t i : r.handoff_routes) {
    if (i >= routes) return Because("route row ", i, " of ", routes);
  }
  if (e == nullptr) return std::nullopt;
  const auto width = static_cast<size_t>(e->width);
  const auto rows = static_cast<size_t>(r.table.rows);
  const auto represented = static_cast<size_t>(r.represented_rows);
  if (e->width < 1 || r.represented_rows < 0 ||
      e->hidden.size() != rows * width || e->combined.size() != rows * width ||
      e->input.size() != represented * width ||
      e->output.size() != represented * width ||
      e->row_gate.size() != represented) {
    return Because("the rows given do not fit ", rows, " tokens, ",
                   r.represented_rows, " represented rows and width ",
                   e->width);
  }
  return std::nullopt;
}

std::vector<RouteCheck> TableChecks() {
  return {
      {RouteContract::kShapes, BrokenShape},
      {RouteContract::kStableKey, StableKey},
      {RouteContract::kDegree, Degree},
      {RouteContract::kDistinctExperts, DistinctExperts},
      {RouteContract::kSelection, Selection},
      {RouteContract::kSelectedGates, SelectedGates},
      {RouteContract::kGroupIdentity, GroupIdentity},
      {RouteContract::kDropless, Dropless},
      {RouteContract::kAdmission, Admission},
      {RouteContract::kGatesKept, GatesKept},
      {RouteContract::kConservation, Conservation},
      {RouteContract::kHandoffRoutes, HandoffRoutes},
      {RouteContract::kHandoffOrder, HandoffOrder},
      {RouteContract::kLocalRows, LocalRows},
      {RouteContract::kOffsets, Offsets},
      {RouteContract::kRepresentation, Representation},
      {RouteContract::kCoverageClaim, CoverageClaim},
      {RouteContract::kPaddingClaim, PaddingClaim},
      {RouteContract::kPhysicalPlan, PhysicalPlan},
      {RouteContract::kCompletion, CompletionOf},
  };
}

}  // namespace trunkline::routing
