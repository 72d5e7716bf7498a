#pragma once

// Is a server of the generation API there, and can it run steps?

#include <grpcpp/channel.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace trunkline::cli {

// A connection that dials again quickly: for watching something start.
std::shared_ptr<grpc::Channel> DialServer(const std::string& address);

// One look. OK: it serves. UNAVAILABLE: not reached, or reached and not ready
// yet; the message says which.
absl::Status LookAtServer(const std::shared_ptr<grpc::Channel>& channel,
                          absl::Duration patience);

// Looks until it serves, for at most max_wait, with a bar on stderr when that
// is a terminal. CANCELLED when a stop signal came (StopSignals).
absl::Status WaitForServer(const std::string& address,
                           const std::shared_ptr<grpc::Channel>& channel,
                           absl::Duration max_wait);

struct ReadyServer {
  size_t index = 0;  // in the list
  std::shared_ptr<grpc::Channel> channel;
};
// The same for whichever of several serves first, looked at in turn from
// `first` on. The error is that of the last look at each.
absl::StatusOr<ReadyServer> WaitForAnyServer(
    const std::vector<std::string>& addresses, size_t first,
    absl::Duration max_wait);

}  // namespace trunkline::cli
