#include "trunk_worker/route_record_policy.h"

#include "common/status_macros.h"

namespace trunkline::trunk {

using routing::AdmissionPolicy;
using routing::PolicyRecord;
using routing::RepresentationPolicy;

v1::RouterPolicyRecord ToProto(const PolicyRecord& p) {
  using W = v1::RouterPolicyRecord;
  W w;
  w.set_name(p.name);
  w.set_experts(static_cast<uint32_t>(p.experts));
  w.set_top_k(static_cast<uint32_t>(p.top_k));
  w.set_transform(ChoiceToWire<W::Transform>(p.transform));
  w.set_owner(ChoiceToWire<W::Owner>(p.owner));
  w.set_bias(p.bias);
  w.set_n_group(static_cast<uint32_t>(p.n_group));
  w.set_topk_group(static_cast<uint32_t>(p.topk_group));
  w.set_tie(ChoiceToWire<W::Tie>(p.tie));
  w.set_gate_domain(ChoiceToWire<W::GateDomain>(p.gate_domain));
  w.set_epsilon(p.epsilon);
  w.set_scale(p.scale);
  w.set_noise(ChoiceToWire<W::Noise>(p.noise));
  w.set_precision(ChoiceToWire<W::Precision>(p.precision));
  w.set_budget(static_cast<uint32_t>(p.budget));
  return w;
}

v1::AdmissionRecord ToProto(const AdmissionPolicy& a) {
  using W = v1::AdmissionRecord;
  W w;
  w.set_kind(ChoiceToWire<W::Kind>(a.kind));
  w.set_capacity_factor(a.capacity_factor);
  w.set_group_tokens(static_cast<uint32_t>(a.group_tokens));
  w.set_arbitration(ChoiceToWire<W::Arbitration>(a.arbitration));
  w.set_seed(a.seed);
  w.set_overflow(ChoiceToWire<W::Overflow>(a.overflow));
  w.set_renormalize(ChoiceToWire<W::Renormalize>(a.renormalize));
  w.set_candidates(ChoiceToWire<W::Candidates>(a.candidates));
  w.set_weight(ChoiceToWire<W::Weight>(a.weight));
  for (ExpertId e : a.fallback) w.add_fallback(e.value);
  w.set_scope(ChoiceToWire<W::Scope>(a.scope));
  return w;
}

v1::RepresentationRecord ToProto(const RepresentationPolicy& r) {
  v1::RepresentationRecord w;
  w.set_form(ChoiceToWire<v1::RepresentationRecord::Form>(r.form));
  w.set_capacity(static_cast<uint32_t>(r.capacity));
  w.set_block_rows(static_cast<uint32_t>(r.block_rows));
  return w;
}

absl::StatusOr<PolicyRecord> FromProto(const v1::RouterPolicyRecord& w) {
  PolicyRecord p;
  p.name = w.name();
  p.experts = w.experts();
  p.top_k = w.top_k();
  TL_ASSIGN_OR_RETURN(
      p.transform,
      ChoiceFromWire(w.transform(), routing::ScoreTransform::kSoftmax,
                     "policy.transform"));
  TL_ASSIGN_OR_RETURN(p.owner,
                      ChoiceFromWire(w.owner(), routing::SelectionOwner::kSoft,
                                     "policy.owner"));
  p.bias = w.bias();
  p.n_group = w.n_group();
  p.topk_group = w.topk_group();
  TL_ASSIGN_OR_RETURN(
      p.tie,
      ChoiceFromWire(w.tie(), routing::TieRule::kUnspecified, "policy.tie"));
  TL_ASSIGN_OR_RETURN(
      p.gate_domain,
      ChoiceFromWire(w.gate_domain(), routing::GateDomain::kSelectedSoftmax,
                     "policy.gate_domain"));
  p.epsilon = w.epsilon();
  p.scale = w.scale();
  TL_ASSIGN_OR_RETURN(
      p.noise, ChoiceFromWire(w.noise(), routing::NoiseSource::kSecondDraw,
                              "policy.noise"));
  TL_ASSIGN_OR_RETURN(
      p.precision, ChoiceFromWire(w.precision(), routing::RouterPrecision::kF64,
                                  "policy.precision"));
  p.budget = w.budget();
  TL_RETURN_IF_ERROR(routing::ValidateRecord(p));
  return p;
}

absl::StatusOr<AdmissionPolicy> FromProto(const v1::AdmissionRecord& w,
                                          int64_t experts) {
  AdmissionPolicy a;
  TL_ASSIGN_OR_RETURN(
      a.kind, ChoiceFromWire(w.kind(), routing::AdmissionKind::kFixedCapacity,
                             "admission.kind"));
  a.capacity_factor = w.capacity_factor();
  a.group_tokens = w.group_tokens();
  TL_ASSIGN_OR_RETURN(
      a.arbitration,
      ChoiceFromWire(w.arbitration(), routing::Arbitration::kSeededRandom,
                     "admission.arbitration"));
  a.seed = w.seed();
  TL_ASSIGN_OR_RETURN(a.overflow,
                      ChoiceFromWire(w.overflow(), routing::Overflow::kReroute,
                                     "admission.overflow"));
  TL_ASSIGN_OR_RETURN(
      a.renormalize,
      ChoiceFromWire(w.renormalize(), routing::RenormalizeRule::kSelectedSum,
                     "admission.renormalize"));
  TL_ASSIGN_OR_RETURN(
      a.candidates,
      ChoiceFromWire(w.candidates(), routing::RerouteCandidates::kDeclaredList,
                     "admission.candidates"));
  TL_ASSIGN_OR_RETURN(
      a.weight, ChoiceFromWire(w.weight(), routing::RerouteWeight::kScoreRatio,
                               "admission.weight"));
  for (uint32_t e : w.fallback()) a.fallback.push_back(ExpertId(e));
  if (w.scope() != v1::AdmissionRecord::SCOPE_UNSPECIFIED) {
    TL_ASSIGN_OR_RETURN(
        a.scope, ChoiceFromWire(w.scope(), routing::GroupScope::kSequence,
                                "admission.scope"));
  }
  TL_RETURN_IF_ERROR(routing::ValidateAdmission(a, experts));
  return a;
}

absl::StatusOr<RepresentationPolicy> FromProto(
    const v1::RepresentationRecord& w) {
  RepresentationPolicy r;
  TL_ASSIGN_OR_RETURN(r.form,
                      ChoiceFromWire(w.form(), routing::RowForm::kBlocks,
                                     "representation.form"));
  r.capacity = w.capacity();
  r.block_rows = w.block_rows();
  TL_RETURN_IF_ERROR(routing::ValidateRepresentation(r));
  return r;
}

}  // namespace trunkline::trunk
