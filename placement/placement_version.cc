#include "placement/placement_version.h"

#include "absl/strings/str_cat.h"

namespace trunkline::placement {

const char* Name(VersionState state) {
  switch (state) {
    case VersionState::kProposed:
      return "proposed";
    case VersionState::kStaging:
      return "staging";
    case VersionState::kReady:
      return "ready";
    case VersionState::kActive:
      return "active";
    case VersionState::kDraining:
      return "draining";
    case VersionState::kRetired:
      return "retired";
    case VersionState::kAbandoned:
      return "abandoned";
  }
  return "unknown state";
}

bool IsLegalTransition(VersionState from, VersionState to) {
  switch (from) {
    case VersionState::kProposed:
      return to == VersionState::kStaging || to == VersionState::kAbandoned;
    case VersionState::kStaging:
      return to == VersionState::kReady || to == VersionState::kAbandoned;
    case VersionState::kReady:
      return to == VersionState::kActive || to == VersionState::kAbandoned;
    case VersionState::kActive:
      return to == VersionState::kDraining;
    case VersionState::kDraining:
      return to == VersionState::kRetired;
    case VersionState::kRetired:
    case VersionState::kAbandoned:
      return false;
  }
  return false;
}

absl::Status CheckTransition(PlacementVersion version, VersionState from,
                             VersionState to) {
  if (IsLegalTransition(from, to)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("placement version ", version.value, " is ", Name(from),
                   " and can not become ", Name(to)));
}

}  // namespace trunkline::placement
