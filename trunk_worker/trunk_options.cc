#include "trunk_worker/trunk_options.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"
#include "kernels/kernel_context.h"

namespace trunkline::trunk {
namespace {

absl::Status Bad(const char* flag, const std::string& value,
                 const std::string& why) {
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, " is \"", value, "\": ", why));
}

absl::Status CheckAddress(const char* flag, const std::string& value,
                          bool zero_port_allowed) {
  const size_t colon = value.rfind(':');
  if (colon == std::string::npos || colon == 0)
    return Bad(flag, value, "expected host:port");
  int port = -1;
  if (!absl::SimpleAtoi(value.substr(colon + 1), &port) || port < 0 ||
      port > 65535)
    return Bad(flag, value, "the port is not a number from 0 to 65535");
  if (port == 0 && !zero_port_allowed)
    return Bad(flag, value, "port 0 can not be dialled");
  return absl::OkStatus();
}

absl::Status CheckRange(const char* flag, int64_t value, int64_t least,
                        int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return Bad(flag, absl::StrCat(value),
             absl::StrCat("expected ", least, " to ", most));
}

absl::Status CheckPositive(const char* flag, absl::Duration value) {
  if (value > absl::ZeroDuration()) return absl::OkStatus();
  return Bad(flag, absl::FormatDuration(value), "expected more than 0");
}

absl::Status CheckLogLevel(const std::string& level) {
  for (const char* known : {"trace", "debug", "info", "warn", "error", "off"})
    if (level == known) return absl::OkStatus();
  return Bad("log-level", level,
             "known are trace, debug, info, warn, error and off");
}

absl::Status CheckNumerics(const std::string& numerics) {
  if (kernels::CheckNumericsText(numerics).ok()) return absl::OkStatus();
  return Bad("numerics", numerics, "known are auto, portable and bf16dot");
}

absl::Status CheckSimd(const std::string& simd) {
  const std::vector<std::string> supported = kernels::SupportedTargets();
  if (simd == "auto" ||
      std::find(supported.begin(), supported.end(), simd) != supported.end())
    return absl::OkStatus();
  return Bad(
      "simd", simd,
      absl::StrCat("this machine runs auto, ", absl::StrJoin(supported, ", ")));
}

}  // namespace

absl::Status TrunkOptions::Validate() const {
  if (model_dir.empty())
    return Bad("model", model_dir, "the checkpoint directory is required");
  if (!coordinator.empty()) {
    for (const absl::string_view one : absl::StrSplit(coordinator, ',')) {
      TL_RETURN_IF_ERROR(CheckAddress("coordinator", std::string(one), false));
    }
  }
  TL_RETURN_IF_ERROR(CheckAddress("listen", listen, true));
  if (transport != "ucx" && transport != "inprocess")
    return Bad("transport", transport, "known are ucx and inprocess");
  TL_RETURN_IF_ERROR(transport::ValidateOptions(transport_options));
  TL_RETURN_IF_ERROR(CheckRange("threads", threads, 0, 1024));
  for (int core : cores) {
    if (core < 0)
      return Bad("cores", absl::StrJoin(cores, ","),
                 "a logical cpu's number is not negative");
  }
  TL_RETURN_IF_ERROR(CheckSimd(simd));
  TL_RETURN_IF_ERROR(CheckNumerics(numerics));
  TL_RETURN_IF_ERROR(CheckRange("max-sequences", sequences_max, 1, 65536));
  TL_RETURN_IF_ERROR(CheckRange("max-sequence-tokens", sequence_tokens_max, 0,
                                int64_t{1} << 24));
  TL_RETURN_IF_ERROR(
      CheckRange("state-memory", state_memory_bytes, 0, int64_t{1} << 50));
  TL_RETURN_IF_ERROR(CheckRange("queue", queue_max, 0, 1 << 20));
  TL_RETURN_IF_ERROR(CheckRange("rows-per-step", rows_per_step, 2, 65536));
  TL_RETURN_IF_ERROR(CheckRange("prefill-chunk", prefill_chunk, 1, 65536));
  TL_RETURN_IF_ERROR(CheckPositive("request-time-max", request_time_max));
  if (unready_patience < absl::ZeroDuration())
    return Bad("unready-patience", absl::FormatDuration(unready_patience),
               "a duration is not negative");
  TL_RETURN_IF_ERROR(CheckPositive("worker-deadline", worker_deadline));
  TL_RETURN_IF_ERROR(CheckPositive("exchange-deadline", exchange_deadline));
  TL_RETURN_IF_ERROR(
      CheckRange("stream-buffer", stream_buffer_bytes, 4096, int64_t{1} << 40));
  TL_RETURN_IF_ERROR(CheckRange("canary-tokens", canary_tokens, 0, 65536));
  if (!metrics_listen.empty())
    TL_RETURN_IF_ERROR(CheckAddress("metrics-listen", metrics_listen, true));
  return CheckLogLevel(log_level);
}

}  // namespace trunkline::trunk
