#pragma once

// The round trip of a message of 8 bytes between two peers of this process,
// each with its own engine thread as in production: what an exchange with
// expert workers can not go below.

#include <string>

#include "absl/status/statusor.h"

namespace trunkline::cli {

// Seconds: the median of `repeats` trips.
absl::StatusOr<double> PingPongSeconds(const std::string& transport_kind,
                                       int repeats);

}  // namespace trunkline::cli
