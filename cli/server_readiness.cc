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
  // A server whose machine is gone says nothing: it has to be asked.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5000);
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

namespace {

absl::StatusOr<size_t> WaitForAny(
    const std::vector<std::string>& addresses,
    const std::vector<std::shared_ptr<grpc::Channel>>& channels, size_t first,
    absl::Duration max_wait) {
  const absl::Time start = Clock::Monotonic().Now();
  StatusLine line;
  std::vector<std::string> seen(addresses.size());
  for (int64_t tick = 0;; ++tick) {
    absl::Duration waited, left;
    for (size_t i = 0; i < channels.size(); ++i) {
      const size_t at = (first + i) % channels.size();
      waited = Clock::Monotonic().Now() - start;
      left = max_wait - waited;
      const absl::Status status =
          LookAtServer(channels[at],
                       std::clamp(left, absl::Milliseconds(50), kLookPatience));
      if (status.ok()) return at;
      seen[at] = std::string(status.message());
    }
    if (left <= absl::ZeroDuration()) {
      std::string message;
      for (size_t i = 0; i < addresses.size(); ++i) {
        absl::StrAppend(&message, i == 0 ? "" : "; ", addresses[i],
                        " does not serve after ",
                        absl::FormatDuration(max_wait), ": ", seen[i]);
      }
      return absl::UnavailableError(message);
    }
    line.Draw(absl::StrFormat("%s %s: %s, %s of %s",
                              ProgressBar(0, 0, kBarWidth, tick),
                              addresses[first], seen[first],
                              HumanDuration(waited), HumanDuration(max_wait)));
    if (StopSignals::Wait(std::min(kBetweenLooks, left))) {
      return absl::CancelledError("interrupted while waiting for the server");
    }
  }
}

}  // namespace

absl::Status WaitForServer(const std::string& address,
                           const std::shared_ptr<grpc::Channel>& channel,
                           absl::Duration max_wait) {
  return WaitForAny({address}, {channel}, 0, max_wait).status();
}

absl::StatusOr<ReadyServer> WaitForAnyServer(
    const std::vector<std::string>& addresses, size_t first,
    absl::Duration max_wait) {
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  for (const std::string& address : addresses)
    channels.push_back(DialServer(address));
  const absl::StatusOr<size_t> ready =
      WaitForAny(addresses, channels, first, max_wait);
  if (!ready.ok()) return ready.status();
  return ReadyServer{*ready, channels[*ready]};
}

}  // namespace trunkline::cli
