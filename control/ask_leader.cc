#include "control/ask_leader.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "common/clock.h"
#include "common/status_macros.h"
#include "control/control_channel.h"
#include "control/coordinator_addresses.h"
#include "control/status_to_grpc.h"

namespace trunkline::control {
namespace {

// Between two rounds over the list: an election takes a moment.
constexpr absl::Duration kRound = absl::Milliseconds(100);
// One that does not answer must not use up the others' time.
constexpr absl::Duration kShareLeast = absl::Seconds(1);

void Pause(absl::Duration wait) {
  std::mutex mutex;
  std::condition_variable never;
  std::unique_lock<std::mutex> lock(mutex);
  never.wait_for(lock, absl::ToChronoNanoseconds(wait), [] { return false; });
}

// False as soon as a dial has failed.
bool Reach(grpc::Channel& channel,
           std::chrono::system_clock::time_point deadline) {
  grpc_connectivity_state state = channel.GetState(/*try_to_connect=*/true);
  while (state != GRPC_CHANNEL_READY) {
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE ||
        state == GRPC_CHANNEL_SHUTDOWN ||
        !channel.WaitForStateChange(state, deadline)) {
      return false;
    }
    state = channel.GetState(/*try_to_connect=*/true);
  }
  return true;
}

}  // namespace

absl::Status AskLeader(
    const std::string& addresses, absl::Duration timeout, Asking asking,
    absl::FunctionRef<grpc::Status(const std::shared_ptr<grpc::Channel>&,
                                   grpc::ClientContext*)>
        call) {
  TL_ASSIGN_OR_RETURN(std::vector<std::string> listed,
                      ParseCoordinatorAddresses(addresses));
  const size_t count = listed.size();
  CoordinatorAddresses which(std::move(listed));
  const absl::Time end = Clock::Monotonic().Now() + timeout;
  while (true) {
    absl::Duration left = end - Clock::Monotonic().Now();
    if (count > 1) left = std::min(left, std::max(kShareLeast, timeout / 3));
    const auto deadline = absl::ToChronoTime(absl::Now() + left);
    const std::string address = which.current();
    const auto channel = OpenControlChannel(address);
    absl::Status status = absl::UnavailableError("can not be reached");
    const bool reached = Reach(*channel, deadline);
    if (reached || asking == Asking::kLook) {  // which says why it can not
      grpc::ClientContext context;
      context.set_deadline(deadline);
      status = FromGrpc(call(channel, &context));
      if (status.ok()) return status;
    }
    which.OnFailure(status);
    // Another code is the leader's own answer.
    const bool unanswered =
        absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
    const bool may_repeat =
        asking == Asking::kLook || !reached || IsNotLeading(status);
    const bool elsewhere = count > 1 || which.current() != address;
    const bool over = Clock::Monotonic().Now() + kRound >= end;
    if (!unanswered || !may_repeat || !elsewhere || over) {
      return Annotate(status, "coordinator " + address);
    }
    if (which.failures() % (count + 1) == 0) Pause(kRound);
  }
}

}  // namespace trunkline::control
