#pragma once

// The one place where a Status becomes a gRPC status and back. Codes map by
// number. Payloads that are messages (their url is "type.googleapis.com/" and
// the message's name) travel as the details of a google.rpc.Status
// (proto/rpc_status.proto); others stay in this process. What a peer sends that
// is no such list is dropped: the code and the message stand.

#include <grpcpp/support/status.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "google/protobuf/message.h"

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

// Makes `status` the refusal of a name that another process has; incarnation:
// that process's.
void SetNameHeld(uint64_t incarnation, absl::Status* status);
// 0: it is no such refusal.
uint64_t NameHeldBy(const absl::Status& status);

// A typed detail of a failure. Setting one of a kind again replaces it; an OK
// status carries none.
void SetDetail(absl::Status* status, const google::protobuf::Message& detail);
// False: the status has none of this kind, or one that does not parse.
bool GetDetail(const absl::Status& status, google::protobuf::Message* detail);

// When the server that refused may be asked again (google.rpc.RetryInfo).
void SetRetryAfter(absl::Status* status, absl::Duration delay);
// Zero: it does not say.
absl::Duration RetryAfter(const absl::Status& status);

}  // namespace trunkline::control
