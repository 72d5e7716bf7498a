#pragma once

// The one place where a Status becomes a gRPC status and back. Codes map by
// number. A status's payloads travel as the details of a google.rpc.Status
// (proto/ rpc_status.proto), so a payload's url is "type.googleapis.com/" and
// the name of a message, and its bytes are one. What a peer sends that is no
// such list is dropped: the code and the message stand.

#include <grpcpp/support/status.h>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "google/protobuf/message.h"

namespace trunkline::control {

grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

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
