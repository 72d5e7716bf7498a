#include "cli/server_readiness.h"

#include <grpcpp/create_channel.h>

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/format.h"
#include "cli/status_line.h"
#include "cli/stop_signals.h"
#include "common/clock.h"
#include "control/status_to_grpc.h"
#include "proto/generation.grpc.pb.h"
#include "proto/health.grpc.pb.h"

namespace trunkline::cli {
namespace {

constexpr absl::Duration kBetweenLooks = absl::Milliseconds(100);
constexpr absl::Duration kLookPatience = absl::Seconds(2);
constexpr int kBarWidth = 24;

// Why a server that answers is not ready, as far as it says.
std::string WhyNotReady(const std::shared_ptr<grpc::Channel>& channel,
                        absl::Duration patience) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       absl::ToChronoMilliseconds(patience));
  v1::GetModelResponse model;
  const grpc::Status status =
      v1::Generation::NewStub(channel)->GetModel(&context, {}, &model);
  if (!status.ok()) return "the server is starting";
  if (model.placement_version() == 0) {
    return absl::StrCat(model.name(), " waits for its expert workers");
  }
  return absl::StrCat(model.name(), " connects to its expert workers");
}

}  // namespace

std::shared_ptr<grpc::Channel> DialServer(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(-1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(),
                                   arguments);
}

absl::Status LookAtServer(const std::shared_ptr<grpc::Channel>& channel,
                          absl::Duration patience) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       absl::ToChronoMilliseconds(patience));
  grpc::health::v1::HealthCheckResponse health;
  const grpc::Status status =
      grpc::health::v1::Health::NewStub(channel)->Check(&context, {}, &health);
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    return absl::OkStatus();  // a server without health: asking will tell
  }
  if (!status.ok()) return control::FromGrpc(status);
  if (health.status() == grpc::health::v1::HealthCheckResponse::SERVING) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(WhyNotReady(channel, patience));
}

absl::Status WaitForServer(const std::string& address,
                           const std::shared_ptr<grpc::Channel>& channel,
                           absl::Duration max_wait) {
  const absl::Time start = Clock::Monotonic().Now();
  StatusLine line;
  for (int64_t tick = 0;; ++tick) {
    const absl::Duration waited = Clock::Monotonic().Now() - start;
    const absl::Duration left = max_wait - waited;
    const absl::Status seen = LookAtServer(
        channel, std::clamp(left, absl::Milliseconds(50), kLookPatience));
    if (seen.ok()) return seen;
    if (left <= absl::ZeroDuration()) {
      return absl::UnavailableError(
          absl::StrCat(address, " does not serve after ",
                       absl::FormatDuration(max_wait), ": ", seen.message()));
    }
    line.Draw(absl::StrFormat("%s %s: %s, %s of %s",
                              ProgressBar(0, 0, kBarWidth, tick), address,
                              std::string(seen.message()),
                              HumanDuration(waited), HumanDuration(max_wait)));
    if (StopSignals::Wait(std::min(kBetweenLooks, left))) {
      return absl::CancelledError("interrupted while waiting for the server");
    }
  }
}

}  // namespace trunkline::cli
