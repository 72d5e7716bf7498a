#pragma once

// The life of a placement version. Pure.
//
//   proposed -> staging -> ready -> active -> draining -> retired
//   proposed | staging | ready  -> abandoned
//
// proposed: decided, its workers are not all there yet.
// staging:  its workers load what they lack; the older version serves.
// ready:    every worker has reported; the point of no return is the next step.
// active:   trunks plan new steps under it. At most one version is.
// draining: a newer one is active, and steps may still be in flight under it.
// retired:  nothing refers to it, its shards may be dropped.
// abandoned: it failed before it became active and never served.

#include <cstdint>

#include "absl/status/status.h"
#include "common/ids.h"

namespace trunkline::placement {

enum class VersionState : uint8_t {
  kProposed = 1,
  kStaging,
  kReady,
  kActive,
  kDraining,
  kRetired,
  kAbandoned
};

const char* Name(VersionState state);  // "proposed", ...

bool IsLegalTransition(VersionState from, VersionState to);

// FAILED_PRECONDITION names the version and both states.
absl::Status CheckTransition(PlacementVersion version, VersionState from,
                             VersionState to);

// A change that is under way: neither serving nor over.
inline bool IsOpen(VersionState state) {
  return state == VersionState::kProposed || state == VersionState::kStaging ||
         state == VersionState::kReady;
}
// No transition leads out of it.
inline bool IsFinal(VersionState state) {
  return state == VersionState::kRetired || state == VersionState::kAbandoned;
}
// Workers keep the version's shards in memory.
inline bool HoldsShards(VersionState state) {
  return !IsFinal(state) && state != VersionState::kProposed;
}

}  // namespace trunkline::placement
