#pragma once

// Who may join: every worker of a cluster serves the same checkpoint with the
// same arithmetic, or the answers would depend on who gives them. Pure.

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "control/coordinator_client.h"
#include "coordinator/placement_store.h"

namespace trunkline::coordinator {

// Checks a newcomer against the cluster's model; the first one defines it.
// numerics_class: what the operator has fixed; empty: the first one's.
// *changed: the model was set or refined. FAILED_PRECONDITION names the
// difference with both values and both workers.
absl::Status AdmitToModel(const control::Registration& registration,
                          const std::string& numerics_class,
                          std::optional<ClusterModel>* model, bool* changed);

}  // namespace trunkline::coordinator
