#include "routing/contract_comparison.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace trunkline::routing {
namespace {

std::string CandidateGroup(const RoutingContract& c) {
  return absl::StrCat(
      c.policy.experts, " experts, ", c.policy.topk_group, " of ",
      c.policy.n_group, " expert groups, routing group of ",
      c.admission.group_tokens == 0
          ? std::string("all tokens")
          : absl::StrCat(c.admission.group_tokens, " tokens"),
      c.admission.scope == GroupScope::kSequence ? " of a sequence" : "");
}

std::string Scorer(const RoutingContract& c) {
  return absl::StrCat(Name(c.policy.transform), ", chosen by the ",
                      Name(c.policy.owner), c.policy.bias ? ", with bias" : "",
                      ", ties by ", Name(c.policy.tie));
}

std::string DegreeBudget(const RoutingContract& c) {
  switch (c.policy.owner) {
    case SelectionOwner::kToken:
      return absl::StrCat(c.policy.top_k, " experts a token");
    case SelectionOwner::kExpert:
      return absl::StrCat(c.policy.budget, " tokens an expert");
    case SelectionOwner::kSoft:
      return absl::StrCat(c.policy.budget, " slots an expert");
  }
  return "unknown";
}

std::string AdmissionText(const RoutingContract& c) {
  const AdmissionPolicy& a = c.admission;
  if (a.kind == AdmissionKind::kDropless) return std::string(Name(a.kind));
  std::string text = absl::StrCat(Name(a.kind), " x ", a.capacity_factor,
                                  ", order ", Name(a.arbitration));
  if (a.arbitration == Arbitration::kSeededRandom) {
    absl::StrAppend(&text, " ", a.seed);
  }
  absl::StrAppend(&text, ", ", Name(a.overflow));
  if (a.overflow == Overflow::kDropRenormalize) {
    absl::StrAppend(&text, " to the ", Name(a.renormalize));
  }
  if (a.overflow == Overflow::kReroute) {
    absl::StrAppend(&text, " by ", Name(a.candidates));
    for (ExpertId e : a.fallback) absl::StrAppend(&text, " ", e.value);
    absl::StrAppend(&text, ", weight ", Name(a.weight));
  }
  return text;
}

std::string Normalization(const RoutingContract& c) {
  return absl::StrCat("gates over the ", Name(c.policy.gate_domain),
                      ", epsilon ", c.policy.epsilon, ", scale ",
                      c.policy.scale);
}

std::string Numerics(const RoutingContract& c) {
  return absl::StrCat("noise ", Name(c.policy.noise), ", ",
                      Name(c.policy.precision));
}

std::string Representation(const RoutingContract& c) {
  const RepresentationPolicy& r = c.representation;
  switch (r.form) {
    case RowForm::kFixed:
      return absl::StrCat(Name(r.form), " ", r.capacity);
    case RowForm::kBlocks:
      return absl::StrCat(Name(r.form), " of ", r.block_rows);
    default:
      return std::string(Name(r.form));
  }
}

struct Axis {
  const char* name;
  std::string (*text)(const RoutingContract&);
  bool relation;
  bool forward;
  bool memory;
};

// The gate decides which routes a gate-ordered admission or a draw takes, so
// relation needs the normalisation too. The row form changes no bit of the
// output, so forward does not need it.
constexpr Axis kAxes[] = {
    {"candidate group", CandidateGroup, true, true, true},
    {"scorer and selection owner", Scorer, true, true, false},
    {"degree budget", DegreeBudget, true, true, true},
    {"admission/capacity/overflow", AdmissionText, true, true, true},
    {"normalization and combine", Normalization, false, true, false},
    {"training controls, noise, numerics", Numerics, true, true, false},
    {"retained state",
     [](const RoutingContract& c) { return std::string(Name(c.retained)); },
     false, false, true},
    {"execution representation", Representation, false, false, true},
};

bool Needs(const Axis& axis, EquivalenceClaim claim, const RoutingContract& a,
           const RoutingContract& b) {
  switch (claim) {
    case EquivalenceClaim::kRelation: {
      const bool by_gate =
          a.policy.noise == NoiseSource::kSecondDraw ||
          b.policy.noise == NoiseSource::kSecondDraw ||
          (a.admission.kind == AdmissionKind::kFixedCapacity &&
           a.admission.arbitration == Arbitration::kGateTokenSlot) ||
          (b.admission.kind == AdmissionKind::kFixedCapacity &&
           b.admission.arbitration == Arbitration::kGateTokenSlot);
      return axis.relation || (axis.text == Normalization && by_gate);
    }
    case EquivalenceClaim::kForward:
      return axis.forward;
    case EquivalenceClaim::kMemory:
      return axis.memory;
  }
  return true;
}

}  // namespace

absl::string_view Name(RetainedState v) {
  switch (v) {
    case RetainedState::kNone:
      return "none";
    case RetainedState::kSave:
      return "save";
    case RetainedState::kRematerialize:
      return "rematerialize";
  }
  return "unknown";
}

absl::string_view Name(EquivalenceClaim v) {
  switch (v) {
    case EquivalenceClaim::kRelation:
      return "relation";
    case EquivalenceClaim::kForward:
      return "forward";
    case EquivalenceClaim::kMemory:
      return "memory";
  }
  return "unknown";
}

absl::StatusOr<EquivalenceClaim> ParseEquivalenceClaim(absl::string_view name) {
  for (EquivalenceClaim c :
       {EquivalenceClaim::kRelation, EquivalenceClaim::kForward,
        EquivalenceClaim::kMemory}) {
    if (name == Name(c)) return c;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", name, "\" is not a claim: relation, forward or memory"));
}

ContractComparison CompareContracts(const RoutingContract& a,
                                    const RoutingContract& b,
                                    EquivalenceClaim claim) {
  ContractComparison comparison;
  comparison.equivalent = true;
  for (const Axis& axis : kAxes) {
    AxisComparison c;
    c.axis = axis.name;
    c.a = axis.text(a);
    c.b = axis.text(b);
    c.differs = c.a != c.b;
    c.needed = Needs(axis, claim, a, b);
    if (c.differs && c.needed) comparison.equivalent = false;
    comparison.axes.push_back(std::move(c));
  }
  return comparison;
}

}  // namespace trunkline::routing
