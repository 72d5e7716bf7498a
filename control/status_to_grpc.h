#pragma once

// The one place where a Status becomes a gRPC status and back. Codes map by
// number; payloads are not sent.

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace trunkline::control {

grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

}  // namespace trunkline::control
