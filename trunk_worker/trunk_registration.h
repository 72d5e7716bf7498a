#pragma once

// What a trunk worker tells the coordinator about itself.

#include <string>

#include "control/coordinator_client.h"
#include "kernels/kernel_context.h"
#include "model/checkpoint.h"
#include "routing/admission.h"

namespace trunkline::trunk {

// Role, model, numerics, admission and the moe layers to be placed; name and
// addresses are the caller's to fill in. numerics: what the trunk is packed
// for.
control::Registration TrunkRegistration(
    const model::Checkpoint& checkpoint,
    const routing::AdmissionPolicy& admission, kernels::Numerics numerics,
    const std::string& self_check_digest);

}  // namespace trunkline::trunk
