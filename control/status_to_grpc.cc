#include "control/status_to_grpc.h"

#include <optional>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "proto/control.pb.h"

namespace trunkline::control {
namespace {

constexpr char kLeaderPayload[] = "trunkline.control.v1.NotLeader";

std::string EncodeDetails(const absl::Status& status,
                          const std::string& leader) {
  v1::NotLeader not_leader;
  not_leader.set_leader(leader);
  v1::StatusDetails details;
  details.set_code(status.raw_code());
  details.set_message(std::string(status.message()));
  details.add_details()->PackFrom(not_leader);
  return details.SerializeAsString();
}

// What a peer sends may be anything; what is no such refusal is dropped.
std::optional<std::string> DecodeLeader(const std::string& bytes) {
  v1::StatusDetails details;
  if (!details.ParseFromString(bytes)) return std::nullopt;
  for (const google::protobuf::Any& any : details.details()) {
    v1::NotLeader not_leader;
    if (any.Is<v1::NotLeader>() && any.UnpackTo(&not_leader)) {
      return not_leader.leader();
    }
  }
  return std::nullopt;
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const auto code = static_cast<grpc::StatusCode>(status.raw_code());
  const std::string message(status.message());
  if (!IsNotLeading(status)) return grpc::Status(code, message);
  return grpc::Status(code, message, EncodeDetails(status, LeaderIn(status)));
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  const int code = static_cast<int>(status.error_code());
  // A peer may send any number; absl would keep it and read it as unknown.
  if (code < 0 || code > static_cast<int>(absl::StatusCode::kUnauthenticated)) {
    return absl::UnknownError(
        absl::StrCat("gRPC status code ", code, ": ", status.error_message()));
  }
  absl::Status result(static_cast<absl::StatusCode>(code),
                      status.error_message());
  if (const auto leader = DecodeLeader(status.error_details())) {
    SetNotLeading(*leader, &result);
  }
  return result;
}

void SetNotLeading(const std::string& leader, absl::Status* status) {
  status->SetPayload(kLeaderPayload, absl::Cord(leader));
}

bool IsNotLeading(const absl::Status& status) {
  return status.GetPayload(kLeaderPayload).has_value();
}

std::string LeaderIn(const absl::Status& status) {
  const absl::optional<absl::Cord> leader = status.GetPayload(kLeaderPayload);
  return leader.has_value() ? std::string(*leader) : "";
}

}  // namespace trunkline::control
