#pragma once

// The numerics class that a cluster computes in, asked before the weights are
// packed for it.

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace trunkline::control {

// The class that the coordinator was told or that its first worker brought;
// "portable", which every machine has, when neither has happened yet. Waits for
// the coordinator; then its error.
absl::StatusOr<std::string> ClusterNumerics(
    const std::string& addresses, absl::Duration patience = absl::Minutes(1));

}  // namespace trunkline::control
