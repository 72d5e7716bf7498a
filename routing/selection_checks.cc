// The contracts of selection and admission.

#include <algorithm>
#include <bit>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "routing/layer_checks.h"

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

// A group is a block of positions of one sequence, and what its earlier tokens
// have taken is there exactly when there were any.
Broken SequenceGroups(const LayerRecord& r) {
  const auto size = static_cast<uint32_t>(r.admission.group_tokens);
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> name_of;
  std::map<uint32_t, uint32_t> earlier;  // group -> tokens before the record's
  for (size_t t = 0; t < r.group_of_token.size(); ++t) {
    const uint32_t position = r.position_of_token[t];
    const auto [name, fresh] = name_of.emplace(
        std::pair(r.request_of_token[t], position / size), r.group_of_token[t]);
    if (name->second != r.group_of_token[t] ||
        (fresh && !earlier.emplace(name->second, position % size).second)) {
      return Because("token ", t, ", position ", position, " of request ",
                     r.request_of_token[t], ", is in group ",
                     r.group_of_token[t],
                     ", which is not that of its block of ", size);
    }
  }
  const int64_t capacity = ExpertCapacity(r.admission.capacity_factor, size,
                                          r.table.top_k, r.table.experts);
  for (const GroupOccupancy& o : r.occupancy) {
    uint64_t taken = 0;
    for (uint32_t used : o.used) {
      taken += used;
      if (static_cast<int64_t>(used) > capacity) {
        return Because("group ", o.group, ": ", used,
                       " rows of an expert are taken, it has ", capacity);
      }
    }
    const auto before = earlier.find(o.group);
    const uint64_t tokens = before == earlier.end() ? 0 : before->second;
    // The first of them found every expert free.
    const auto k = static_cast<uint64_t>(r.table.top_k);
    if (tokens == 0 || taken < k || taken > tokens * k) {
      return Because("group ", o.group, ": ", taken, " rows are taken by ",
                     tokens, " earlier tokens");
    }
    earlier.erase(before);
  }
  for (const auto& [group, tokens] : earlier) {
    if (tokens == 0) continue;
    return Because("group ", group, ": what its ", tokens,
                   " earlier tokens have taken is missing");
  }
  return std::nullopt;
}

Broken GroupIdentity(const LayerRecord& r, const ExecutionEvidence*) {
  if (r.group_of_token.size() != static_cast<size_t>(r.table.rows)) {
    return Because(r.group_of_token.size(), " group identities for ",
                   r.table.rows, " tokens");
  }
  if (r.admission.scope == GroupScope::kSequence) return SequenceGroups(r);
  if (!r.occupancy.empty()) {
    return Because(
        "rows are taken by earlier tokens, where a group is made of "
        "the batch");
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
  if (status.ok()) {
    status =
        AdmitRoutes(r.NamedAdmission(), r.AdmissionOf(), &a.table, &a.report);
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

}  // namespace

std::vector<RouteCheck> SelectionChecks() {
  return {
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
  };
}

}  // namespace trunkline::routing
