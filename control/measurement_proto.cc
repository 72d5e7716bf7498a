#include "control/measurement_proto.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "control/cluster_proto.h"

namespace trunkline::control {
namespace {

constexpr double kCostSecondsMost = 3600;

uint64_t VersionToWire(PlacementVersion version) {
  return version.valid() ? version.value : 0;
}

PlacementVersion VersionFromWire(uint64_t version) {
  return version == 0 ? PlacementVersion() : PlacementVersion(version);
}

}  // namespace

absl::StatusOr<ExpertCosts> CostsFromWire(const wire::ExpertCosts& message,
                                          const std::string& where) {
  const std::pair<const char*, double> fields[] = {
      {".read_seconds", message.read_seconds()},
      {".row_seconds", message.row_seconds()}};
  for (const auto& [field, seconds] : fields) {
    if (!(seconds >= 0 && seconds <= kCostSecondsMost)) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, field, ": is ", seconds, ", 0 to ",
                       kCostSecondsMost, " is possible"));
    }
  }
  return ExpertCosts{.read_seconds = message.read_seconds(),
                     .row_seconds = message.row_seconds()};
}

void CostsToWire(const ExpertCosts& costs, wire::ExpertCosts* out) {
  out->set_read_seconds(costs.read_seconds);
  out->set_row_seconds(costs.row_seconds);
}

absl::StatusOr<CanaryResult> CanaryFromWire(const wire::CanaryResult& message) {
  CanaryResult canary;
  canary.version = VersionFromWire(message.version());
  if (!canary.version.valid()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "canary.version: ", message.version(), " is no placement version"));
  }
  canary.digest = message.digest();
  canary.prompt = message.prompt();
  TL_RETURN_IF_ERROR(ValidateName(canary.digest, "canary.digest"));
  TL_RETURN_IF_ERROR(ValidateName(canary.prompt, "canary.prompt"));
  canary.before_version = VersionFromWire(message.before_version());
  canary.before_digest = message.before_digest();
  if (canary.before_version.valid()) {
    TL_RETURN_IF_ERROR(
        ValidateName(canary.before_digest, "canary.before_digest"));
  } else {
    canary.before_digest.clear();
  }
  return canary;
}

void CanaryToWire(const CanaryResult& canary, wire::CanaryResult* out) {
  out->set_version(VersionToWire(canary.version));
  out->set_digest(canary.digest);
  out->set_prompt(canary.prompt);
  out->set_before_version(VersionToWire(canary.before_version));
  out->set_before_digest(canary.before_digest);
}

}  // namespace trunkline::control
