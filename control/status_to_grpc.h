#pragma once

// The one place where a Status becomes a gRPC status and back. Codes map by
// number. Of payloads only the leader's address is sent.

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"

namespace trunkline::control {

grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

// Makes `status` the refusal of a coordinator that does not lead, and so has
// done nothing of what it was asked. leader: "host:port" of who does, empty
// when it does not know.
void SetNotLeading(const std::string& leader, absl::Status* status);
bool IsNotLeading(const absl::Status& status);
// Empty: it does not say.
std::string LeaderIn(const absl::Status& status);

}  // namespace trunkline::control
