#include "coordinator/cluster_model.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace trunkline::coordinator {
namespace {

using control::Registration;

absl::Status Mismatch(const Registration& registration,
                      const ClusterModel& model, const std::string& what,
                      const std::string& theirs, const std::string& ours) {
  return absl::FailedPreconditionError(
      absl::StrCat("worker '", registration.name, "' has ", what, " ", theirs,
                   ", the cluster has ", ours, " (since worker '",
                   model.registered_by, "' joined)"));
}

absl::Status CompareShapes(const Registration& registration,
                           const ClusterModel& model, bool compare_bytes) {
  const auto& theirs = registration.moe_layers;
  const auto& ours = model.moe_layers;
  if (theirs.size() != ours.size()) {
    return Mismatch(registration, model,
                    "moe layers:", absl::StrCat(theirs.size()),
                    absl::StrCat(ours.size()));
  }
  for (size_t i = 0; i < ours.size(); ++i) {
    if (theirs[i].layer != ours[i].layer) {
      return Mismatch(registration, model, absl::StrCat("as moe layer ", i),
                      absl::StrCat("layer ", theirs[i].layer.value),
                      absl::StrCat("layer ", ours[i].layer.value));
    }
    const std::string layer = absl::StrCat("in layer ", ours[i].layer.value);
    if (theirs[i].experts != ours[i].experts) {
      return Mismatch(registration, model, layer,
                      absl::StrCat(theirs[i].experts, " experts"),
                      absl::StrCat(ours[i].experts));
    }
    if (compare_bytes && theirs[i].expert_bytes != ours[i].expert_bytes) {
      return Mismatch(registration, model, layer,
                      absl::StrCat(theirs[i].expert_bytes, " bytes per expert"),
                      absl::StrCat(ours[i].expert_bytes));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckFixedClass(const Registration& registration,
                             const std::string& fixed,
                             const std::optional<ClusterModel>& model) {
  if (fixed.empty()) return absl::OkStatus();
  if (model.has_value() && model->numerics_class != fixed) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the coordinator was started with --numerics ", fixed,
        ", but its store holds a cluster of numerics class ",
        model->numerics_class, " (since worker '", model->registered_by,
        "' joined): leave the flag out, or start a new cluster"));
  }
  if (registration.numerics_class == fixed) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "worker '", registration.name, "' has numerics class ",
      registration.numerics_class, ", the coordinator was started with ",
      "--numerics ", fixed));
}

}  // namespace

absl::Status AdmitToModel(const Registration& registration,
                          const std::string& numerics_class,
                          std::optional<ClusterModel>* model, bool* changed) {
  const bool expert = registration.role == control::Role::kExpert;
  *changed = false;
  TL_RETURN_IF_ERROR(CheckFixedClass(registration, numerics_class, *model));
  if (!model->has_value()) {
    *model = ClusterModel{.model_digest = registration.model_digest,
                          .numerics_class = registration.numerics_class,
                          .self_check_digest = registration.self_check_digest,
                          .moe_layers = registration.moe_layers,
                          .registered_by = registration.name,
                          .sizes_from_expert = expert};
    *changed = true;
    return absl::OkStatus();
  }
  ClusterModel& ours = **model;
  if (registration.model_digest != ours.model_digest) {
    return Mismatch(registration, ours, "model digest",
                    registration.model_digest, ours.model_digest);
  }
  if (registration.numerics_class != ours.numerics_class) {
    return Mismatch(registration, ours, "numerics class",
                    registration.numerics_class, ours.numerics_class);
  }
  if (registration.self_check_digest != ours.self_check_digest) {
    return Mismatch(registration, ours, "self-check digest",
                    registration.self_check_digest, ours.self_check_digest);
  }
  TL_RETURN_IF_ERROR(
      CompareShapes(registration, ours, expert && ours.sizes_from_expert));
  if (expert && !ours.sizes_from_expert) {
    // Only expert workers store experts, so their sizes are the true ones.
    ours.moe_layers = registration.moe_layers;
    ours.sizes_from_expert = true;
    *changed = true;
  }
  return absl::OkStatus();
}

}  // namespace trunkline::coordinator
