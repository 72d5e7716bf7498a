#include "cli/contract_spec.h"

#include <algorithm>
#include <limits>
#include <set>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"

namespace trunkline::cli {
namespace {

using routing::AdmissionPolicy;
using routing::PolicyRecord;
using routing::RepresentationPolicy;

absl::Status Bad(const Spec& spec, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("\"", spec.name, "\": ", why));
}

// Reads a spec's values; what is left unread in the end is not known.
class Values {
 public:
  explicit Values(const Spec& spec) : spec_(spec) {}

  absl::Status Count(const std::string& key, int64_t* value) {
    return Read(key, "a whole number", [&](const std::string& text) {
      return absl::SimpleAtoi(text, value) && *value >= 0;
    });
  }
  absl::Status Seed(const std::string& key, uint64_t* value) {
    return Read(key, "a whole number", [&](const std::string& text) {
      return absl::SimpleAtoi(text, value);
    });
  }
  absl::Status Number(const std::string& key, double* value) {
    return Read(key, "a number", [&](const std::string& text) {
      return absl::SimpleAtod(text, value);
    });
  }
  absl::Status Flag(const std::string& key, bool* value) {
    return Read(key, "true or false", [&](const std::string& text) {
      return absl::SimpleAtob(text, value);
    });
  }
  template <typename T>
  absl::Status Choice(const std::string& key,
                      const std::vector<std::pair<std::string, T>>& choices,
                      T* value) {
    std::vector<std::string> names;
    for (const auto& [name, unused] : choices) names.push_back(name);
    return Read(key, absl::StrJoin(names, ", "), [&](const std::string& text) {
      for (const auto& [name, choice] : choices) {
        if (name != text) continue;
        *value = choice;
        return true;
      }
      return false;
    });
  }
  // "3+1+2".
  absl::Status Experts(const std::string& key, std::vector<ExpertId>* value) {
    return Read(key, "expert ids such as 3+1", [&](const std::string& text) {
      value->clear();
      for (absl::string_view part : absl::StrSplit(text, '+')) {
        uint32_t id = 0;
        if (!absl::SimpleAtoi(part, &id)) return false;
        value->push_back(ExpertId(id));
      }
      return true;
    });
  }
  // Whether the spec has the key, whatever its value.
  bool Has(const std::string& key) const { return spec_.values.count(key) > 0; }
  absl::Status Done() const {
    std::vector<std::string> unknown;
    for (const auto& [key, unused] : spec_.values) {
      if (read_.count(key) == 0) unknown.push_back(key);
    }
    if (unknown.empty()) return absl::OkStatus();
    return Bad(spec_, absl::StrCat("has no \"", unknown.front(), "\"; it has ",
                                   read_.empty() ? "nothing to set"
                                                 : absl::StrJoin(read_, ", ")));
  }

 private:
  template <typename Parse>
  absl::Status Read(const std::string& key, absl::string_view what,
                    const Parse& parse) {
    read_.insert(key);
    const auto at = spec_.values.find(key);
    if (at == spec_.values.end() || parse(at->second)) return absl::OkStatus();
    return Bad(spec_, absl::StrCat(key, "=", at->second, " is not ", what));
  }

  const Spec& spec_;
  std::set<std::string> read_;
};

int64_t TokensAnExpert(const SpecBase& base) {
  const PolicyRecord& p = base.contract.policy;
  const int64_t routes = base.tokens * p.top_k;
  return std::clamp<int64_t>((routes + p.experts - 1) / p.experts, 1,
                             std::max<int64_t>(base.tokens, 1));
}

absl::StatusOr<PolicyRecord> NamedPolicy(const Spec& spec, Values* values,
                                         const SpecBase& base) {
  const PolicyRecord& recorded = base.contract.policy;
  int64_t top_k = recorded.top_k;
  if (spec.name == "recorded") return recorded;
  if (spec.name == "switch") return routing::SwitchPolicy(recorded.experts);
  if (spec.name == "gshard") return routing::GShardPolicy(recorded.experts);
  if (spec.name == "expert-choice") {
    int64_t tokens = TokensAnExpert(base);
    TL_RETURN_IF_ERROR(values->Count("tokens", &tokens));
    return routing::ExpertChoicePolicy(recorded.experts, tokens);
  }
  TL_RETURN_IF_ERROR(values->Count("top-k", &top_k));
  if (spec.name == "nemotron-h") {
    PolicyRecord p = recorded;
    if (recorded.transform != routing::ScoreTransform::kSigmoid) {
      p = routing::NemotronHPolicy(recorded.experts, top_k, 1, 1, true, 1.0);
      p.bias = false;
    }
    p.top_k = top_k;
    return p;
  }
  if (spec.name == "softmax-topk")
    return routing::SoftmaxTopKPolicy(recorded.experts, top_k, false);
  if (spec.name == "softmax-topk-renormalized")
    return routing::SoftmaxTopKPolicy(recorded.experts, top_k, true);
  if (spec.name == "topk-softmax")
    return routing::TopKSoftmaxPolicy(recorded.experts, top_k);
  if (spec.name == "noisy-topk")
    return routing::NoisyTopKPolicy(recorded.experts, top_k);
  if (spec.name == "soft-moe")
    return Bad(spec,
               "mixes all tokens into every slot, so there are no routes to "
               "replay");
  return Bad(spec,
             "is not a policy: recorded, nemotron-h, softmax-topk, "
             "softmax-topk-renormalized, topk-softmax, switch, gshard, "
             "noisy-topk, expert-choice");
}

}  // namespace

const char kPolicyHelp[] =
    "recorded, nemotron-h, softmax-topk, softmax-topk-renormalized, "
    "topk-softmax, switch, gshard, noisy-topk or expert-choice; with what "
    "differs: nemotron-h:top-k=4,groups=8,top-groups=3,normalize=true,"
    "scale=2.5,bias=false or expert-choice:tokens=4";
const char kAdmissionHelp[] =
    "recorded, dropless or capacity:factor=1.25,group=8,scope=batch|sequence,"
    "order=gate|source|first-choices|random,seed=1,"
    "overflow=drop|renormalize|reroute,candidates=next-best|list,fallback=3+1,"
    "weight=keep|ratio";
const char kServingAdmissionHelp[] =
    "dropless, or a fixed capacity that drops routes: "
    "capacity:factor=1.25,group=64,overflow=drop|renormalize, over groups of "
    "so many positions of a sequence. It makes another model of the "
    "checkpoint: give every trunk worker the same";
const char kFormHelp[] =
    "recorded, packed, fixed:rows=4, max-load or blocks:rows=4";

absl::StatusOr<Spec> ParseSpec(absl::string_view text) {
  Spec spec;
  const std::vector<std::string> parts =
      absl::StrSplit(text, absl::MaxSplits(':', 1));
  spec.name = parts[0];
  if (spec.name.empty())
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" has no name before its values"));
  if (parts.size() == 1) return spec;
  const std::vector<std::string> items = absl::StrSplit(parts[1], ',');
  for (const std::string& item : items) {
    const std::vector<std::string> pair =
        absl::StrSplit(item, absl::MaxSplits('=', 1));
    if (pair.size() != 2 || pair[0].empty() || pair[1].empty())
      return Bad(spec, absl::StrCat("\"", item, "\" is not key=value"));
    if (!spec.values.emplace(pair[0], pair[1]).second)
      return Bad(spec, absl::StrCat(pair[0], " is set twice"));
  }
  return spec;
}

absl::StatusOr<PolicyRecord> PolicyFromSpec(const Spec& spec,
                                            const SpecBase& base) {
  Values values(spec);
  TL_ASSIGN_OR_RETURN(PolicyRecord p, NamedPolicy(spec, &values, base));
  if (p.owner == routing::SelectionOwner::kToken && spec.name != "switch" &&
      spec.name != "gshard") {
    TL_RETURN_IF_ERROR(values.Count("top-k", &p.top_k));
    TL_RETURN_IF_ERROR(values.Number("scale", &p.scale));
  }
  if (p.transform == routing::ScoreTransform::kSigmoid) {
    TL_RETURN_IF_ERROR(values.Count("groups", &p.n_group));
    TL_RETURN_IF_ERROR(values.Count("top-groups", &p.topk_group));
    TL_RETURN_IF_ERROR(values.Flag("bias", &p.bias));
    bool normalize = p.gate_domain == routing::GateDomain::kSelectedSum;
    TL_RETURN_IF_ERROR(values.Flag("normalize", &normalize));
    p.gate_domain = normalize ? routing::GateDomain::kSelectedSum
                              : routing::GateDomain::kScore;
    p.epsilon = normalize ? 1e-20 : 0.0;
  }
  TL_RETURN_IF_ERROR(values.Done());
  TL_RETURN_IF_ERROR(routing::ValidateRecord(p));
  return p;
}

absl::StatusOr<AdmissionPolicy> AdmissionFromSpec(const Spec& spec,
                                                  const SpecBase& base) {
  using routing::Arbitration;
  using routing::Overflow;
  using routing::RerouteCandidates;
  using routing::RerouteWeight;
  Values values(spec);
  AdmissionPolicy a;
  if (spec.name == "recorded") {
    TL_RETURN_IF_ERROR(values.Done());
    return base.contract.admission;
  }
  if (spec.name == "capacity") {
    a.kind = routing::AdmissionKind::kFixedCapacity;
    a.capacity_factor = 1.0;
    TL_RETURN_IF_ERROR(values.Choice<routing::GroupScope>(
        "scope",
        {{"batch", routing::GroupScope::kBatch},
         {"sequence", routing::GroupScope::kSequence}},
        &a.scope));
    if (a.scope == routing::GroupScope::kSequence)
      a.arbitration = Arbitration::kTokenSlot;  // the only one that it takes
    TL_RETURN_IF_ERROR(values.Number("factor", &a.capacity_factor));
    TL_RETURN_IF_ERROR(values.Count("group", &a.group_tokens));
    TL_RETURN_IF_ERROR(
        values.Choice<Arbitration>("order",
                                   {{"gate", Arbitration::kGateTokenSlot},
                                    {"source", Arbitration::kTokenSlot},
                                    {"first-choices", Arbitration::kSlotToken},
                                    {"random", Arbitration::kSeededRandom}},
                                   &a.arbitration));
    TL_RETURN_IF_ERROR(values.Seed("seed", &a.seed));
    TL_RETURN_IF_ERROR(
        values.Choice<Overflow>("overflow",
                                {{"drop", Overflow::kDrop},
                                 {"renormalize", Overflow::kDropRenormalize},
                                 {"reroute", Overflow::kReroute}},
                                &a.overflow));
    if (a.overflow == Overflow::kDropRenormalize)
      a.renormalize = routing::RenormalizeRule::kSelectedSum;
    TL_RETURN_IF_ERROR(values.Choice<RerouteCandidates>(
        "candidates",
        {{"next-best", RerouteCandidates::kNextBestScore},
         {"list", RerouteCandidates::kDeclaredList}},
        &a.candidates));
    TL_RETURN_IF_ERROR(values.Experts("fallback", &a.fallback));
    TL_RETURN_IF_ERROR(
        values.Choice<RerouteWeight>("weight",
                                     {{"keep", RerouteWeight::kKeepGate},
                                      {"ratio", RerouteWeight::kScoreRatio}},
                                     &a.weight));
  } else if (spec.name != "dropless") {
    return Bad(spec, "is not an admission: recorded, dropless, capacity");
  }
  TL_RETURN_IF_ERROR(values.Done());
  TL_RETURN_IF_ERROR(
      routing::ValidateAdmission(a, base.contract.policy.experts));
  return a;
}

absl::StatusOr<AdmissionPolicy> ServingAdmissionFromText(
    absl::string_view text) {
  TL_ASSIGN_OR_RETURN(Spec spec, ParseSpec(text));
  if (spec.name == "recorded")
    return Bad(spec, "is for a recording: serving takes dropless or capacity");
  if (spec.name == "capacity") spec.values.emplace("scope", "sequence");
  // Experts are known when the model is loaded; a fallback list can not be
  // served.
  SpecBase base;
  base.contract.policy.experts = std::numeric_limits<int32_t>::max();
  TL_ASSIGN_OR_RETURN(AdmissionPolicy admission, AdmissionFromSpec(spec, base));
  TL_RETURN_IF_ERROR(
      routing::CheckServingAdmission(admission, base.contract.policy.experts));
  return admission;
}

absl::StatusOr<RepresentationPolicy> FormFromSpec(const Spec& spec,
                                                  const SpecBase& base) {
  Values values(spec);
  RepresentationPolicy r;
  if (spec.name == "recorded") {
    r = base.contract.representation;
  } else if (spec.name == "fixed") {
    r.form = routing::RowForm::kFixed;
    TL_RETURN_IF_ERROR(values.Count("rows", &r.capacity));
  } else if (spec.name == "max-load") {
    r.form = routing::RowForm::kMaxLoad;
  } else if (spec.name == "blocks") {
    r.form = routing::RowForm::kBlocks;
    TL_RETURN_IF_ERROR(values.Count("rows", &r.block_rows));
  } else if (spec.name != "packed") {
    return Bad(spec,
               "is not a form: recorded, packed, fixed, max-load, blocks");
  }
  TL_RETURN_IF_ERROR(values.Done());
  TL_RETURN_IF_ERROR(routing::ValidateRepresentation(r));
  return r;
}

namespace {

absl::StatusOr<routing::RetainedState> RetainedFromText(
    const std::string& text) {
  std::vector<absl::string_view> known;
  for (const routing::RetainedState state :
       {routing::RetainedState::kNone, routing::RetainedState::kSave,
        routing::RetainedState::kRematerialize}) {
    known.push_back(routing::Name(state));
    if (known.back() == text) return state;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", text,
      "\" is not what a forward pass retains: ", absl::StrJoin(known, ", ")));
}

}  // namespace

absl::StatusOr<routing::RoutingContract> ContractFromText(
    const ContractText& text, const SpecBase& base) {
  routing::RoutingContract contract = base.contract;
  if (!text.policy.empty()) {
    TL_ASSIGN_OR_RETURN(const Spec spec, ParseSpec(text.policy));
    TL_ASSIGN_OR_RETURN(contract.policy, PolicyFromSpec(spec, base));
  }
  if (!text.admission.empty()) {
    TL_ASSIGN_OR_RETURN(const Spec spec, ParseSpec(text.admission));
    TL_ASSIGN_OR_RETURN(contract.admission, AdmissionFromSpec(spec, base));
  }
  if (!text.form.empty()) {
    TL_ASSIGN_OR_RETURN(const Spec spec, ParseSpec(text.form));
    TL_ASSIGN_OR_RETURN(contract.representation, FormFromSpec(spec, base));
  }
  if (!text.retain.empty()) {
    TL_ASSIGN_OR_RETURN(contract.retained, RetainedFromText(text.retain));
  }
  return contract;
}

std::string NameOf(const ContractText& text) {
  std::string name;
  for (const std::string* spec : {&text.policy, &text.admission, &text.form})
    if (!spec->empty()) absl::StrAppend(&name, name.empty() ? "" : " ", *spec);
  if (!text.retain.empty())
    absl::StrAppend(&name, name.empty() ? "" : " ", "retain=", text.retain);
  return name;
}

std::string DescribeContract(const routing::RoutingContract& contract) {
  std::string text = absl::StrCat("policy ", contract.policy.name, "\n");
  for (const routing::AxisComparison& axis :
       routing::CompareContracts(contract, contract,
                                 routing::EquivalenceClaim::kForward)
           .axes) {
    absl::StrAppend(&text, "  ", axis.axis, ": ", axis.a, "\n");
  }
  return text;
}

}  // namespace trunkline::cli
