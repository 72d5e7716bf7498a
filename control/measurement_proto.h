#pragma once

// What workers measure, as wire messages and back: costs of expert work and the
// canary's answer. Part of cluster_proto.h's work, which calls it.

#include <string>

#include "absl/status/statusor.h"
#include "control/cluster_view.h"
#include "control/coordinator_client.h"
#include "proto/control.pb.h"

namespace trunkline::control {

// INVALID_ARGUMENT names the field, `where` in front of it.
absl::StatusOr<ExpertCosts> CostsFromWire(
    const ::trunkline::control::v1::ExpertCosts& message,
    const std::string& where);
void CostsToWire(const ExpertCosts& costs,
                 ::trunkline::control::v1::ExpertCosts* out);

absl::StatusOr<CanaryResult> CanaryFromWire(
    const ::trunkline::control::v1::CanaryResult& message);
void CanaryToWire(const CanaryResult& canary,
                  ::trunkline::control::v1::CanaryResult* out);

}  // namespace trunkline::control
