#include "absl/strings/str_cat.h"
#include "transport/transport.h"

namespace trunkline::transport {
namespace {

absl::Status Positive(const char* field, absl::Duration value) {
  if (value > absl::ZeroDuration()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("transport option ", field, " is ",
                   absl::FormatDuration(value), "; it must be above zero"));
}

}  // namespace

absl::Status ValidateOptions(const Options& options) {
  for (const absl::Status& status :
       {Positive("peer_timeout", options.peer_timeout),
        Positive("heartbeat_interval", options.heartbeat_interval),
        Positive("connect_timeout", options.connect_timeout)}) {
    if (!status.ok()) return status;
  }
  // One lost slice of the scheduler must not cost a peer: several heartbeats
  // have to fit into the silence that counts as death.
  if (options.heartbeat_interval * 2 > options.peer_timeout) {
    return absl::InvalidArgumentError(
        absl::StrCat("transport option heartbeat_interval is ",
                     absl::FormatDuration(options.heartbeat_interval),
                     "; it must be at most half of peer_timeout (",
                     absl::FormatDuration(options.peer_timeout), ")"));
  }
  if (options.spin < absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("transport option spin is ",
                     absl::FormatDuration(options.spin), ", below zero"));
  }
  if (options.message_bytes_max <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("transport option message_bytes_max is ",
                     options.message_bytes_max, "; it must be above zero"));
  }
  if (options.queue_bytes_max < options.message_bytes_max) {
    return absl::InvalidArgumentError(absl::StrCat(
        "transport option queue_bytes_max is ", options.queue_bytes_max,
        ", below message_bytes_max (", options.message_bytes_max, ")"));
  }
  if (options.pool_bytes_max < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("transport option pool_bytes_max is ",
                     options.pool_bytes_max, ", below zero"));
  }
  return absl::OkStatus();
}

}  // namespace trunkline::transport
