#include "expert_worker/expert_options.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"

namespace trunkline::expert {

namespace {

absl::Status Bad(const char* option, const std::string& value,
                 const std::string& why) {
  return absl::InvalidArgumentError(
      absl::StrCat("option ", option, " = \"", value, "\": ", why));
}

absl::Status CheckHostPort(const char* option, const std::string& value,
                           bool zero_port_allowed) {
  const size_t colon = value.rfind(':');
  if (colon == std::string::npos || colon == 0)
    return Bad(option, value, "expected host:port");
  int port = -1;
  if (!absl::SimpleAtoi(value.substr(colon + 1), &port) || port < 0 ||
      port > 65535)
    return Bad(option, value, "the port is not a number from 0 to 65535");
  if (port == 0 && !zero_port_allowed)
    return Bad(option, value, "port 0 can not be dialled");
  return absl::OkStatus();
}

bool ListensEverywhere(const std::string& listen) {
  return listen.rfind("0.0.0.0:", 0) == 0 || listen.rfind("[::]:", 0) == 0;
}

}  // namespace

absl::Status ExpertOptions::Validate() const {
  if (model_dir.empty())
    return Bad("model", model_dir, "the checkpoint directory is required");
  for (const absl::string_view one : absl::StrSplit(coordinator, ',')) {
    TL_RETURN_IF_ERROR(CheckHostPort("coordinator", std::string(one), false));
  }
  if (transport != "ucx" && transport != "inprocess")
    return Bad("transport", transport, "known are ucx and inprocess");
  if (transport == "ucx") {
    TL_RETURN_IF_ERROR(CheckHostPort("listen", listen, true));
    if (ListensEverywhere(listen) && advertise_host.empty())
      return Bad("listen", listen,
                 "trunks can not dial this address; set advertise-host");
  } else if (listen.empty()) {
    return Bad("listen", listen, "an inprocess address is a name");
  }
  TL_RETURN_IF_ERROR(transport::ValidateOptions(transport_options));
  if (!metrics_listen.empty())
    TL_RETURN_IF_ERROR(CheckHostPort("metrics-listen", metrics_listen, true));
  if (threads < 0 || threads > 1024)
    return Bad("threads", absl::StrCat(threads), "expected 0 to 1024");
  for (const int core : cores) {
    if (core < 0)
      return Bad("cores", absl::StrJoin(cores, ","),
                 "a logical cpu's number is not negative");
  }
  if (!kernels::CheckNumericsText(numerics).ok())
    return Bad("numerics", numerics, "known are auto, portable and bf16dot");
  if (answer != "auto" && answer != "gated-f32")
    return Bad("answer", answer, "known are auto and gated-f32");
  if (memory_limit_bytes < 0)
    return Bad("memory-limit", absl::StrCat(memory_limit_bytes),
               "expected a number of bytes, or 0 for none");
  if (limits.queued_frames_max == 0)
    return Bad("queued-frames", "0", "at least one frame has to fit");
  if (limits.held_bytes_max == 0)
    return Bad("held-bytes", "0", "at least one frame has to fit");
  if (limits.batch_routes_max == 0)
    return Bad("batch-routes", "0", "at least one route has to fit");
  if (handover_timeout < absl::ZeroDuration())
    return Bad("handover-timeout", absl::FormatDuration(handover_timeout),
               "a duration is not negative");
  return absl::OkStatus();
}

AnswerForm ChooseAnswerForm(const std::string& answer,
                            kernels::Activation activation) {
  return answer == "auto" && activation == kernels::Activation::kBf16
             ? AnswerForm::kUngatedBf16
             : AnswerForm::kGatedF32;
}

}  // namespace trunkline::expert
