#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "transport/transport.h"

namespace trunkline::transport {

// kind: "ucx" or "inprocess". A build or machine without the backend:
// UNAVAILABLE with the reason. Options that do not fit together, or an unknown
// kind: INVALID_ARGUMENT.
absl::StatusOr<std::unique_ptr<Transport>> MakeTransport(
    const std::string& kind, const Options& options);

}  // namespace trunkline::transport
