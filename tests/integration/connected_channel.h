#pragma once

// A channel that is connected before the first call. gRPC 1.51 looks at errno
// some calls after its connect(), and now and then takes a connection that is
// on its way for one that failed ("failed to connect to all addresses", with an
// errno that connect does not have). A call that does not wait for the server
// would fail with it; the channel itself dials again.

#include <grpcpp/channel.h>

#include <chrono>
#include <memory>
#include <utility>

namespace trunkline::testing {

// Gives up silently: what a server that is not there does is the test's own
// question.
inline std::shared_ptr<grpc::Channel> Connected(
    std::shared_ptr<grpc::Channel> channel) {
  channel->WaitForConnected(std::chrono::system_clock::now() +
                            std::chrono::seconds(5));
  return channel;
}

}  // namespace trunkline::testing
