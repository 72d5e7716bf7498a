#include "routing/admission.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/random.h"
#include "common/status_macros.h"

namespace trunkline::routing {
namespace {

template <typename... Args>
absl::Status Undefined(absl::string_view field, const Args&... why) {
  return absl::InvalidArgumentError(
      absl::StrCat("admission policy: ", field, ": ", why...));
}

absl::Status CheckDropless(const AdmissionPolicy& p) {
  const AdmissionPolicy plain;
  if (p.capacity_factor != plain.capacity_factor) {
    return Undefined("capacity_factor", p.capacity_factor,
                     " in a policy that calls itself dropless");
  }
  if (p.scope != plain.scope || p.group_tokens != plain.group_tokens ||
      p.arbitration != plain.arbitration || p.seed != plain.seed ||
      p.overflow != plain.overflow || p.renormalize != plain.renormalize ||
      p.candidates != plain.candidates || p.weight != plain.weight ||
      !p.fallback.empty()) {
    return Undefined("kind",
                     "dropless has no groups, no order and no overflow");
  }
  return absl::OkStatus();
}

// As long as the longest sequence.
constexpr int64_t kSequenceGroupMax = int64_t{1} << 24;

// A group of a sequence is admitted while it comes: nothing that follows a
// token may decide over it.
absl::Status CheckSequenceScope(const AdmissionPolicy& p) {
  if (p.group_tokens < 1 || p.group_tokens > kSequenceGroupMax) {
    return Undefined("group_tokens", p.group_tokens,
                     " positions in a group of a sequence (group=N): it has 1 "
                     "to ",
                     kSequenceGroupMax);
  }
  if (p.arbitration != Arbitration::kTokenSlot) {
    return Undefined(
        "arbitration", "the order ", Name(p.arbitration),
        " lets a later token of the sequence take an earlier one's "
        "row; a group of a sequence is admitted in source order");
  }
  if (p.overflow == Overflow::kReroute) {
    return Undefined("overflow",
                     "reroute hands out the rows that are left when the whole "
                     "group has come, so a later token of the sequence would "
                     "decide over an earlier one");
  }
  return absl::OkStatus();
}

absl::Status CheckOverflow(const AdmissionPolicy& p, int64_t experts) {
  if ((p.overflow == Overflow::kDropRenormalize) !=
      (p.renormalize != RenormalizeRule::kNone)) {
    return Undefined("renormalize", Name(p.renormalize),
                     " with the overflow action ", Name(p.overflow));
  }
  const bool reroute = p.overflow == Overflow::kReroute;
  if (reroute != (p.candidates != RerouteCandidates::kNone)) {
    return Undefined("candidates", Name(p.candidates),
                     " with the overflow action ", Name(p.overflow));
  }
  if (reroute != (p.weight != RerouteWeight::kNone)) {
    return Undefined("weight", Name(p.weight), " with the overflow action ",
                     Name(p.overflow));
  }
  if ((p.candidates == RerouteCandidates::kDeclaredList) ==
      p.fallback.empty()) {
    return Undefined("fallback", p.fallback.size(),
                     " experts with candidates by ", Name(p.candidates));
  }
  std::vector<ExpertId> sorted(p.fallback);
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 0; i < sorted.size(); ++i) {
    if (sorted[i].value >= experts) {
      return Undefined("fallback", "expert ", sorted[i].value, " of ", experts);
    }
    if (i > 0 && sorted[i] == sorted[i - 1]) {
      return Undefined("fallback", "expert ", sorted[i].value, " twice");
    }
  }
  return absl::OkStatus();
}

struct Group {
  GroupAdmission report;
  std::vector<uint32_t> routes;
};

// A route's place in the queue of its group: smaller first.
using QueueKey = std::tuple<double, uint64_t, uint64_t>;
QueueKey KeyOf(const AdmissionPolicy& p, const RouteTable& t, uint32_t r) {
  const uint64_t token = t.token_id[r];
  const uint64_t slot = t.selected_slot[r];
  switch (p.arbitration) {
    case Arbitration::kGateTokenSlot:
      return {-static_cast<double>(t.gate[r]), token, slot};
    case Arbitration::kTokenSlot:
      return {0.0, token, slot};
    case Arbitration::kSlotToken:
      return {0.0, slot, token};
    case Arbitration::kSeededRandom:
      return {RandomStream(p.seed, token * 65536 + slot).NextUnit(), token,
              slot};
  }
  return {0.0, token, slot};
}

class Admitter {
 public:
  Admitter(const AdmissionPolicy& policy, const AdmissionInput& input,
           RouteTable* table, AdmissionReport* report)
      : policy_(policy), input_(input), table_(*table), report_(*report) {}

  absl::Status Run() {
    std::map<uint32_t, Group> groups;
    for (int64_t t = 0; t < table_.rows; ++t) {
      ++groups[GroupOf(static_cast<uint32_t>(t))].report.tokens;
    }
    for (uint32_t r = 0; r < table_.size(); ++r) {
      if (table_.fate[r] != RouteFate::kAccepted) continue;
      groups[GroupOf(table_.token_id[r])].routes.push_back(r);
    }
    for (auto& [identity, group] : groups) {
      group.report.group = identity;
      TL_RETURN_IF_ERROR(AdmitGroup(&group));
      report_.groups.push_back(std::move(group.report));
    }
    return absl::OkStatus();
  }

 private:
  uint32_t GroupOf(uint32_t token) const {
    if (!input_.group_of_token.empty()) return input_.group_of_token[token];
    if (policy_.group_tokens == 0) return 0;
    return static_cast<uint32_t>(token / policy_.group_tokens);
  }

  absl::Status AdmitGroup(Group* group) {
    GroupAdmission& g = group->report;
    const auto experts = static_cast<size_t>(table_.experts);
    g.requested = static_cast<int64_t>(group->routes.size());
    g.selected.assign(experts, 0);
    g.executed.assign(experts, 0);
    for (uint32_t r : group->routes) ++g.selected[table_.expert_id[r].value];
    if (policy_.kind == AdmissionKind::kDropless) {
      g.accepted = g.requested;
      g.executed = g.selected;
      return absl::OkStatus();
    }
    const int64_t tokens = policy_.scope == GroupScope::kSequence
                               ? policy_.group_tokens
                               : g.tokens;
    g.capacity = ExpertCapacity(policy_.capacity_factor, tokens, table_.top_k,
                                table_.experts);
    const std::vector<int64_t> occupied = Occupied(g.group);
    for (int64_t rows : occupied) g.occupied += rows;
    std::sort(group->routes.begin(), group->routes.end(),
              [&](uint32_t a, uint32_t b) {
                return KeyOf(policy_, table_, a) < KeyOf(policy_, table_, b);
              });
    std::vector<uint32_t> overflow;
    for (uint32_t r : group->routes) {
      const uint32_t expert = table_.expert_id[r].value;
      if (occupied[expert] + g.executed[expert] < g.capacity) {
        ++g.executed[expert];
      } else {
        table_.fate[r] = RouteFate::kDropped;
        overflow.push_back(r);
      }
    }
    if (policy_.overflow == Overflow::kReroute) {
      for (uint32_t r : overflow) TL_RETURN_IF_ERROR(Reroute(r, &g));
    } else if (policy_.overflow == Overflow::kDropRenormalize) {
      RenormalizeTokensOf(overflow);
    }
    for (uint32_t r : group->routes) {
      (table_.fate[r] == RouteFate::kAccepted ? g.accepted : g.dropped)++;
    }
    g.unused = table_.experts * g.capacity - g.occupied - g.accepted;
    return absl::OkStatus();
  }

  std::vector<int64_t> Occupied(uint32_t group) const {
    for (const GroupOccupancy& o : input_.occupancy) {
      if (o.group == group) return {o.used.begin(), o.used.end()};
    }
    return std::vector<int64_t>(static_cast<size_t>(table_.experts), 0);
  }

  bool TokenHas(uint32_t token, ExpertId expert) const {
    const auto first =
        std::lower_bound(table_.token_id.begin(), table_.token_id.end(), token);
    for (auto it = first; it != table_.token_id.end() && *it == token; ++it) {
      const auto r = static_cast<size_t>(it - table_.token_id.begin());
      if (table_.expert_id[r] == expert ||
          report_.selected_expert[r] == expert) {
        return true;
      }
    }
    return false;
  }

  std::vector<ExpertId> Candidates(uint32_t token) const {
    if (policy_.candidates == RerouteCandidates::kDeclaredList) {
      return policy_.fallback;
    }
    const auto experts = static_cast<size_t>(table_.experts);
    const auto row = input_.scores.subspan(token * experts, experts);
    std::vector<ExpertId> order;
    for (uint32_t e = 0; e < experts; ++e) order.push_back(ExpertId(e));
    std::stable_sort(order.begin(), order.end(), [&](ExpertId a, ExpertId b) {
      return row[a.value] > row[b.value];
    });
    return order;
  }

  absl::Status Reroute(uint32_t r, GroupAdmission* g) {
    const uint32_t token = table_.token_id[r];
    for (ExpertId to : Candidates(token)) {
      int64_t& used = g->executed[to.value];
      if (used >= g->capacity || TokenHas(token, to)) continue;
      if (policy_.weight == RerouteWeight::kScoreRatio) {
        const auto base =
            static_cast<size_t>(token) * static_cast<size_t>(table_.experts);
        const float from = input_.scores[base + table_.expert_id[r].value];
        const float ratio = input_.scores[base + to.value] / from;
        if (!std::isfinite(ratio)) {
          return Undefined("weight", "token ", token, ": the ratio of score ",
                           input_.scores[base + to.value], " to score ", from,
                           " is not finite");
        }
        table_.gate[r] = table_.gate[r] * ratio;
      }
      ++used;
      ++g->rerouted;
      table_.expert_id[r] = to;
      table_.fate[r] = RouteFate::kAccepted;
      return absl::OkStatus();
    }
    return absl::OkStatus();  // no candidate has room: it stays dropped
  }

  // Each token that lost a route once. A route that was not drawn never had a
  // gate to redistribute.
  void RenormalizeTokensOf(const std::vector<uint32_t>& overflow) {
    std::vector<uint32_t> tokens;
    for (uint32_t r : overflow) tokens.push_back(table_.token_id[r]);
    std::sort(tokens.begin(), tokens.end());
    tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
    for (uint32_t token : tokens) {
      const auto range = std::equal_range(table_.token_id.begin(),
                                          table_.token_id.end(), token);
      const auto begin =
          static_cast<size_t>(range.first - table_.token_id.begin());
      const auto end =
          static_cast<size_t>(range.second - table_.token_id.begin());
      float all = 0.0f;
      float kept = 0.0f;
      for (size_t r = begin; r < end; ++r) {
        if (table_.fate[r] == RouteFate::kNotDrawn) continue;
        all += table_.gate[r];
        if (table_.fate[r] == RouteFate::kAccepted) kept += table_.gate[r];
      }
      if (!(kept > 0.0f)) continue;
      for (size_t r = begin; r < end; ++r) {
        if (table_.fate[r] != RouteFate::kAccepted) continue;
        table_.gate[r] = table_.gate[r] * (all / kept);
      }
    }
  }

  const AdmissionPolicy& policy_;
  const AdmissionInput& input_;
  RouteTable& table_;
  AdmissionReport& report_;
};

}  // namespace

absl::string_view Name(AdmissionKind v) {
  return v == AdmissionKind::kDropless        ? "dropless"
         : v == AdmissionKind::kFixedCapacity ? "fixed capacity"
                                              : "unknown";
}
absl::string_view Name(GroupScope v) {
  return v == GroupScope::kBatch      ? "batch"
         : v == GroupScope::kSequence ? "sequence"
                                      : "unknown";
}
absl::string_view Name(Arbitration v) {
  switch (v) {
    case Arbitration::kGateTokenSlot:
      return "gate, token, slot";
    case Arbitration::kTokenSlot:
      return "token, slot";
    case Arbitration::kSlotToken:
      return "slot, token";
    case Arbitration::kSeededRandom:
      return "seeded random";
  }
  return "unknown";
}
absl::string_view Name(Overflow v) {
  switch (v) {
    case Overflow::kDrop:
      return "drop";
    case Overflow::kDropRenormalize:
      return "drop and renormalize";
    case Overflow::kReroute:
      return "reroute";
  }
  return "unknown";
}
absl::string_view Name(RenormalizeRule v) {
  switch (v) {
    case RenormalizeRule::kNone:
      return "none";
    case RenormalizeRule::kSelectedSum:
      return "selected sum";
  }
  return "unknown";
}
absl::string_view Name(RerouteCandidates v) {
  switch (v) {
    case RerouteCandidates::kNone:
      return "none";
    case RerouteCandidates::kNextBestScore:
      return "next best score";
    case RerouteCandidates::kDeclaredList:
      return "declared list";
  }
  return "unknown";
}
absl::string_view Name(RerouteWeight v) {
  switch (v) {
    case RerouteWeight::kNone:
      return "none";
    case RerouteWeight::kKeepGate:
      return "keep gate";
    case RerouteWeight::kScoreRatio:
      return "score ratio";
  }
  return "unknown";
}

absl::Status ValidateAdmission(const AdmissionPolicy& p, int64_t experts) {
  for (absl::string_view name :
       {Name(p.kind), Name(p.scope), Name(p.arbitration), Name(p.overflow),
        Name(p.renormalize), Name(p.candidates), Name(p.weight)}) {
    if (name == "unknown") {
      return Undefined("policy", "holds a choice that is not known");
    }
  }
  if (p.kind == AdmissionKind::kDropless) return CheckDropless(p);
  if (!std::isfinite(p.capacity_factor) || !(p.capacity_factor > 0.0) ||
      p.capacity_factor > 1e6) {
    return Undefined("capacity_factor", p.capacity_factor,
                     " is not above 0 and at most 1e6");
  }
  if (p.group_tokens < 0) {
    return Undefined("group_tokens", p.group_tokens, " is negative");
  }
  if (p.seed != 0 && p.arbitration != Arbitration::kSeededRandom) {
    return Undefined("seed", p.seed, " with the order ", Name(p.arbitration));
  }
  if (p.scope == GroupScope::kSequence) {
    TL_RETURN_IF_ERROR(CheckSequenceScope(p));
  }
  return CheckOverflow(p, experts);
}

absl::Status CheckServingAdmission(const AdmissionPolicy& p, int64_t experts) {
  TL_RETURN_IF_ERROR(ValidateAdmission(p, experts));
  if (p.kind == AdmissionKind::kDropless || p.scope == GroupScope::kSequence) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      "admission policy: scope: a routing group of the batch makes a token's "
      "output depend on who else is served in its step; serving takes "
      "scope=sequence with group=N");
}

std::string SpecOf(const AdmissionPolicy& p) {
  if (p.kind == AdmissionKind::kDropless) return "dropless";
  const char* order = "?";
  switch (p.arbitration) {
    case Arbitration::kGateTokenSlot:
      order = "gate";
      break;
    case Arbitration::kTokenSlot:
      order = "source";
      break;
    case Arbitration::kSlotToken:
      order = "first-choices";
      break;
    case Arbitration::kSeededRandom:
      order = "random";
      break;
  }
  std::string text = absl::StrCat("capacity:factor=", p.capacity_factor,
                                  ",scope=", Name(p.scope),
                                  ",group=", p.group_tokens, ",order=", order);
  if (p.arbitration == Arbitration::kSeededRandom) {
    absl::StrAppend(&text, ",seed=", p.seed);
  }
  if (p.overflow == Overflow::kDrop) return text + ",overflow=drop";
  if (p.overflow == Overflow::kDropRenormalize) {
    return text + ",overflow=renormalize";
  }
  absl::StrAppend(
      &text, ",overflow=reroute,candidates=",
      p.candidates == RerouteCandidates::kDeclaredList ? "list" : "next-best",
      ",weight=", p.weight == RerouteWeight::kScoreRatio ? "ratio" : "keep");
  for (size_t i = 0; i < p.fallback.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? ",fallback=" : "+", p.fallback[i].value);
  }
  return text;
}

int64_t ExpertCapacity(double capacity_factor, int64_t tokens, int64_t top_k,
                       int64_t experts) {
  const double rows = capacity_factor * static_cast<double>(tokens) *
                      static_cast<double>(top_k) / static_cast<double>(experts);
  return static_cast<int64_t>(std::ceil(rows));
}

absl::Status AdmitRoutes(const AdmissionPolicy& policy,
                         const AdmissionInput& input, RouteTable* table,
                         AdmissionReport* report) {
  report->groups.clear();
  report->selected_expert = table->expert_id;
  report->selected_gate = table->gate;
  TL_RETURN_IF_ERROR(ValidateAdmission(policy, table->experts));
  const auto rows = static_cast<size_t>(table->rows);
  const bool sequence = policy.scope == GroupScope::kSequence;
  if ((sequence || !input.group_of_token.empty()) &&
      (input.group_of_token.size() != rows ||
       (!sequence && policy.group_tokens != 0))) {
    return Undefined("group_of_token", input.group_of_token.size(),
                     " identities for ", rows, " tokens, group_tokens ",
                     policy.group_tokens);
  }
  for (const GroupOccupancy& o : input.occupancy) {
    if (sequence && o.used.size() == static_cast<size_t>(table->experts)) {
      continue;
    }
    return Undefined("occupancy", "group ", o.group, " has ", o.used.size(),
                     " counts for ", table->experts, " experts, scope ",
                     Name(policy.scope));
  }
  if (policy.kind == AdmissionKind::kFixedCapacity && table->top_k == 0) {
    return Undefined("kind",
                     "fixed capacity where a token has no fixed number of "
                     "routes");
  }
  const bool needs_scores =
      policy.candidates == RerouteCandidates::kNextBestScore ||
      policy.weight == RerouteWeight::kScoreRatio;
  if (needs_scores &&
      input.scores.size() != rows * static_cast<size_t>(table->experts)) {
    return Undefined("scores", input.scores.size(), " values for ", rows,
                     " tokens and ", table->experts, " experts");
  }
  for (size_t r = 0; r < table->token_id.size(); ++r) {
    if (table->token_id[r] < rows &&
        table->expert_id[r].value < table->experts) {
      continue;
    }
    return Undefined("route", r, " names token ", table->token_id[r],
                     " and expert ", table->expert_id[r].value);
  }
  return Admitter(policy, input, table, report).Run();
}

}  // namespace trunkline::routing
