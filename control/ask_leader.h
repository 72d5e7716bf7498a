#pragma once

// A command line tool's call to whichever of several coordinators leads.

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"

namespace trunkline::control {

// kLook may be asked again whatever became of it. kChange is asked again only
// when it is certain that it was not done: the coordinator could not be reached
// or does not lead.
enum class Asking : uint8_t { kLook, kChange };

// Makes `call` against one coordinator of the list ("host:port,host:port")
// after the other, and against the one that a follower names, until one answers
// as leader or the time is over. The context has its deadline. The error names
// the coordinator that gave it.
absl::Status AskLeader(
    const std::string& addresses, absl::Duration timeout, Asking asking,
    absl::FunctionRef<grpc::Status(const std::shared_ptr<grpc::Channel>&,
                                   grpc::ClientContext*)>
        call);

}  // namespace trunkline::control
