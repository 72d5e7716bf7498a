#pragma once

// The parts of the full validator; route_validator.h is its face.

#include <optional>
#include <string>
#include <vector>

#include "routing/route_validator.h"

namespace trunkline::routing {

std::optional<std::string> BrokenShape(const LayerRecord& record,
                                       const ExecutionEvidence* evidence);
std::vector<RouteCheck> SelectionChecks();  // keys to conservation
std::vector<RouteCheck> HandoffChecks();    // packed order to completion
std::vector<RouteCheck> ExecutionChecks();  // packed rows and combine

}  // namespace trunkline::routing
