#include "control/status_to_grpc.h"

#include <algorithm>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/control.pb.h"
#include "proto/rpc_status.pb.h"

namespace trunkline::control {
namespace {

constexpr char kTypePrefix[] = "type.googleapis.com/";

std::string UrlOf(const google::protobuf::Message& message) {
  return absl::StrCat(kTypePrefix, message.GetTypeName());
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  google::rpc::Status details;
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& bytes) {
    if (!absl::StartsWith(url, kTypePrefix)) return;
    google::protobuf::Any* detail = details.add_details();
    detail->set_type_url(std::string(url.data(), url.size()));
    detail->set_value(std::string(bytes));
  });
  const auto code = static_cast<grpc::StatusCode>(status.raw_code());
  std::string message(status.message());
  if (details.details().empty()) return grpc::Status(code, message);
  details.set_code(status.raw_code());
  details.set_message(message);
  return grpc::Status(code, message, details.SerializeAsString());
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
  google::rpc::Status details;
  if (details.ParseFromString(status.error_details())) {
    for (const google::protobuf::Any& detail : details.details())
      result.SetPayload(detail.type_url(), absl::Cord(detail.value()));
  }
  return result;
}

void SetNotLeading(const std::string& leader, absl::Status* status) {
  v1::NotLeader not_leader;
  not_leader.set_leader(leader);
  SetDetail(status, not_leader);
}

bool IsNotLeading(const absl::Status& status) {
  v1::NotLeader not_leader;
  return GetDetail(status, &not_leader);
}

std::string LeaderIn(const absl::Status& status) {
  v1::NotLeader not_leader;
  return GetDetail(status, &not_leader) ? not_leader.leader() : "";
}

void SetNameHeld(uint64_t incarnation, absl::Status* status) {
  v1::NameHeld held;
  held.set_incarnation(incarnation);
  SetDetail(status, held);
}

uint64_t NameHeldBy(const absl::Status& status) {
  v1::NameHeld held;
  return GetDetail(status, &held) ? held.incarnation() : 0;
}

void SetDetail(absl::Status* status, const google::protobuf::Message& detail) {
  status->SetPayload(UrlOf(detail), absl::Cord(detail.SerializeAsString()));
}

bool GetDetail(const absl::Status& status, google::protobuf::Message* detail) {
  const absl::optional<absl::Cord> bytes = status.GetPayload(UrlOf(*detail));
  return bytes.has_value() && detail->ParseFromString(std::string(*bytes));
}

void SetRetryAfter(absl::Status* status, absl::Duration delay) {
  google::rpc::RetryInfo info;
  const int64_t nanos = absl::ToInt64Nanoseconds(delay);
  info.mutable_retry_delay()->set_seconds(nanos / 1000000000);
  info.mutable_retry_delay()->set_nanos(
      static_cast<int32_t>(nanos % 1000000000));
  SetDetail(status, info);
}

absl::Duration RetryAfter(const absl::Status& status) {
  google::rpc::RetryInfo info;
  if (!GetDetail(status, &info)) return absl::ZeroDuration();
  return std::max(absl::ZeroDuration(),
                  absl::Seconds(info.retry_delay().seconds()) +
                      absl::Nanoseconds(info.retry_delay().nanos()));
}

}  // namespace trunkline::control
