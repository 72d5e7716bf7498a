// Names, the known policies and what is well defined; route_by_record.cc
// applies a record.

#include "routing/policy_record.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"

namespace trunkline::routing {
namespace {

template <typename... Args>
absl::Status Undefined(const PolicyRecord& r, absl::string_view field,
                       const Args&... why) {
  return absl::InvalidArgumentError(
      absl::StrCat("router policy ", r.name, ": ", field, ": ", why...));
}

absl::Status CheckSizes(const PolicyRecord& r) {
  if (r.experts < 1 || r.experts > std::numeric_limits<int32_t>::max()) {
    return Undefined(r, "experts", r.experts, " is not 1 or more");
  }
  if (r.owner == SelectionOwner::kToken) {
    if (r.budget != 0) {
      return Undefined(r, "budget", r.budget,
                       " where each token takes top_k experts");
    }
    RouterPolicy fast;
    fast.experts = r.experts;
    fast.top_k = r.top_k;
    fast.n_group = r.n_group;
    fast.topk_group = r.topk_group;
    return ValidatePolicy(fast);
  }
  if (r.top_k != 0) {
    return Undefined(r, "top_k", r.top_k,
                     " where a token has no fixed number of experts");
  }
  if (r.budget < 1 || r.budget > std::numeric_limits<int32_t>::max()) {
    return Undefined(r, "budget", r.budget, " is not 1 or more");
  }
  if (r.n_group != 1 || r.topk_group != 1) {
    return Undefined(r, "n_group", r.n_group,
                     " where tokens do not choose among experts");
  }
  return absl::OkStatus();
}

absl::Status CheckGates(const PolicyRecord& r) {
  if (!std::isfinite(r.epsilon) || r.epsilon < 0.0) {
    return Undefined(r, "epsilon", r.epsilon, " is not finite and 0 or more");
  }
  if (r.epsilon != 0.0 && r.gate_domain != GateDomain::kSelectedSum) {
    return Undefined(r, "epsilon", r.epsilon,
                     " where no gate is divided by a sum");
  }
  if (!std::isfinite(r.scale) || !(r.scale > 0.0)) {
    return Undefined(r, "scale", r.scale, " is not finite and above 0");
  }
  switch (r.gate_domain) {
    case GateDomain::kScore:
      return absl::OkStatus();
    case GateDomain::kSelectedSum:
      if (r.transform == ScoreTransform::kIdentity) {
        return Undefined(r, "gate_domain",
                         "a sum of logits can be zero or negative");
      }
      return absl::OkStatus();
    case GateDomain::kSelectedSoftmax:
      if (r.transform != ScoreTransform::kIdentity) {
        return Undefined(r, "gate_domain", "softmax over selected ",
                         Name(r.transform),
                         " scores: the domain is the selected logits");
      }
      if (r.bias) {
        return Undefined(r, "bias",
                         "with a softmax over selected logits it is not said "
                         "whether they hold the bias");
      }
      return absl::OkStatus();
  }
  return Undefined(r, "gate_domain", static_cast<int>(r.gate_domain),
                   " is not known");
}

absl::Status CheckNoise(const PolicyRecord& r) {
  if (r.noise == NoiseSource::kLogitNoise &&
      r.owner != SelectionOwner::kToken) {
    return Undefined(r, "noise", "logit noise where experts choose");
  }
  if (r.noise == NoiseSource::kSecondDraw &&
      (r.owner != SelectionOwner::kToken || r.top_k != 2 ||
       r.gate_domain != GateDomain::kSelectedSum || r.scale != 1.0)) {
    return Undefined(r, "noise",
                     "a draw for the second route needs two routes a token "
                     "whose gates are normalised to one");
  }
  return absl::OkStatus();
}

}  // namespace

absl::string_view Name(ScoreTransform v) {
  switch (v) {
    case ScoreTransform::kIdentity:
      return "identity";
    case ScoreTransform::kSigmoid:
      return "sigmoid";
    case ScoreTransform::kSoftmax:
      return "softmax";
  }
  return "unknown";
}
absl::string_view Name(SelectionOwner v) {
  switch (v) {
    case SelectionOwner::kToken:
      return "token";
    case SelectionOwner::kExpert:
      return "expert";
    case SelectionOwner::kSoft:
      return "soft";
  }
  return "unknown";
}
absl::string_view Name(TieRule v) {
  switch (v) {
    case TieRule::kLowerId:
      return "lower id";
    case TieRule::kUnspecified:
      return "unspecified";
  }
  return "unknown";
}
absl::string_view Name(GateDomain v) {
  switch (v) {
    case GateDomain::kScore:
      return "score";
    case GateDomain::kSelectedSum:
      return "selected sum";
    case GateDomain::kSelectedSoftmax:
      return "selected softmax";
  }
  return "unknown";
}
absl::string_view Name(NoiseSource v) {
  switch (v) {
    case NoiseSource::kNone:
      return "none";
    case NoiseSource::kLogitNoise:
      return "recorded logit noise";
    case NoiseSource::kSecondDraw:
      return "recorded second draw";
  }
  return "unknown";
}
absl::string_view Name(RouterPrecision v) {
  switch (v) {
    case RouterPrecision::kF32:
      return "f32";
    case RouterPrecision::kBF16Logits:
      return "bf16 logits";
    case RouterPrecision::kF64:
      return "f64";
  }
  return "unknown";
}

PolicyRecord NemotronHPolicy(int64_t experts, int64_t top_k, int64_t n_group,
                             int64_t topk_group, bool normalize, double scale) {
  PolicyRecord r;
  r.name = "nemotron-h";
  r.experts = experts;
  r.top_k = top_k;
  r.transform = ScoreTransform::kSigmoid;
  r.bias = true;
  r.n_group = n_group;
  r.topk_group = topk_group;
  r.gate_domain = normalize ? GateDomain::kSelectedSum : GateDomain::kScore;
  r.epsilon = normalize ? 1e-20 : 0.0;
  r.scale = scale;
  return r;
}
PolicyRecord SoftmaxTopKPolicy(int64_t experts, int64_t top_k,
                               bool renormalize) {
  PolicyRecord r;
  r.name = renormalize ? "softmax-topk-renormalized" : "softmax-topk";
  r.experts = experts;
  r.top_k = top_k;
  r.transform = ScoreTransform::kSoftmax;
  r.gate_domain = renormalize ? GateDomain::kSelectedSum : GateDomain::kScore;
  return r;
}
PolicyRecord TopKSoftmaxPolicy(int64_t experts, int64_t top_k) {
  PolicyRecord r;
  r.name = "topk-softmax";
  r.experts = experts;
  r.top_k = top_k;
  r.transform = ScoreTransform::kIdentity;
  r.gate_domain = GateDomain::kSelectedSoftmax;
  return r;
}
PolicyRecord SwitchPolicy(int64_t experts) {
  PolicyRecord r = SoftmaxTopKPolicy(experts, 1, false);
  r.name = "switch";
  return r;
}
PolicyRecord GShardPolicy(int64_t experts) {
  PolicyRecord r = SoftmaxTopKPolicy(experts, 2, true);
  r.name = "gshard";
  r.noise = NoiseSource::kSecondDraw;
  return r;
}
PolicyRecord NoisyTopKPolicy(int64_t experts, int64_t top_k) {
  PolicyRecord r = TopKSoftmaxPolicy(experts, top_k);
  r.name = "noisy-topk";
  r.noise = NoiseSource::kLogitNoise;
  return r;
}
PolicyRecord ExpertChoicePolicy(int64_t experts, int64_t tokens_per_expert) {
  PolicyRecord r;
  r.name = "expert-choice";
  r.experts = experts;
  r.transform = ScoreTransform::kSoftmax;
  r.owner = SelectionOwner::kExpert;
  r.budget = tokens_per_expert;
  return r;
}
PolicyRecord SoftMoePolicy(int64_t experts, int64_t slots_per_expert) {
  PolicyRecord r;
  r.name = "soft-moe";
  r.experts = experts;
  r.transform = ScoreTransform::kSoftmax;
  r.owner = SelectionOwner::kSoft;
  r.precision = RouterPrecision::kF64;
  r.budget = slots_per_expert;
  return r;
}

absl::Status ValidateRecord(const PolicyRecord& r) {
  for (absl::string_view name :
       {Name(r.transform), Name(r.owner), Name(r.tie), Name(r.gate_domain),
        Name(r.noise), Name(r.precision)}) {
    if (name == "unknown") {
      return Undefined(r, "record", "holds a choice that is not known");
    }
  }
  absl::Status status = CheckSizes(r);
  if (!status.ok()) return status;
  if (r.tie == TieRule::kUnspecified) {
    return Undefined(r, "tie",
                     "without a rule equal scores have no defined choice");
  }
  if (r.owner != SelectionOwner::kToken &&
      (r.bias || r.gate_domain != GateDomain::kScore || r.scale != 1.0)) {
    return Undefined(r, "owner", Name(r.owner),
                     " with a bias, a normalised gate or a scale is no policy "
                     "that is defined");
  }
  if (r.owner == SelectionOwner::kSoft &&
      (r.transform != ScoreTransform::kSoftmax ||
       r.noise != NoiseSource::kNone)) {
    return Undefined(r, "transform",
                     "soft assignment is a softmax over each axis, without "
                     "noise");
  }
  status = CheckGates(r);
  if (!status.ok()) return status;
  return CheckNoise(r);
}

absl::StatusOr<RouterPolicy> ServingPolicy(const PolicyRecord& r) {
  absl::Status status = ValidateRecord(r);
  if (!status.ok()) return status;
  const auto refuse = [&](absl::string_view why) {
    return absl::FailedPreconditionError(absl::StrCat(
        "router policy ", r.name, " can not serve a causal decoder: ", why));
  };
  if (r.owner == SelectionOwner::kExpert) {
    return refuse(
        "experts rank tokens against each other, so a token's experts would "
        "depend on later tokens and on other requests");
  }
  if (r.owner == SelectionOwner::kSoft) {
    return refuse(
        "every slot mixes all tokens, later ones and other requests' "
        "included");
  }
  if (r.noise != NoiseSource::kNone) {
    return refuse("its noise or draws exist only in a record");
  }
  if (r.transform != ScoreTransform::kSigmoid) {
    return refuse(
        absl::StrCat("the serving router computes sigmoid scores, "
                     "this policy needs ",
                     Name(r.transform)));
  }
  if (r.precision != RouterPrecision::kF32) {
    return refuse(
        absl::StrCat("the serving router works in f32, this policy "
                     "in ",
                     Name(r.precision)));
  }
  const bool normalize = r.gate_domain == GateDomain::kSelectedSum;
  if (normalize && r.epsilon != 1e-20) {
    return refuse(
        absl::StrCat("the serving router divides by the sum plus 1e-20, this "
                     "policy adds ",
                     r.epsilon));
  }
  if (static_cast<double>(static_cast<float>(r.scale)) != r.scale) {
    return refuse(absl::StrCat("scale ", r.scale, " is not an f32 number"));
  }
  RouterPolicy p;
  p.experts = r.experts;
  p.top_k = r.top_k;
  p.n_group = r.n_group;
  p.topk_group = r.topk_group;
  p.normalize = normalize;
  p.scale = static_cast<float>(r.scale);
  return p;
}

PolicyRecord RecordOf(const RouterPolicy& p, bool bias) {
  PolicyRecord r = NemotronHPolicy(p.experts, p.top_k, p.n_group, p.topk_group,
                                   p.normalize, static_cast<double>(p.scale));
  r.bias = bias;
  return r;
}

}  // namespace trunkline::routing
