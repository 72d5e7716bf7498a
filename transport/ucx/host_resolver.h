#pragma once

// Looks host names up on a thread of its own, since the system's resolver
// blocks and Connect must not. The thread starts with the first name.

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "transport/transport.h"
#include "transport/ucx/socket_address.h"

namespace trunkline::transport::ucx {

class HostResolver {
 public:
  // `done` is called on the resolver's thread.
  using Done = std::function<void(ConnectionId,
                                  absl::StatusOr<std::vector<SocketAddress>>)>;
  explicit HostResolver(Done done) : done_(std::move(done)) {}
  ~HostResolver() { Stop(); }

  // Waits for a look-up that is under way and drops the ones behind it; `done`
  // is not called any more.
  void Stop();
  void Start(ConnectionId connection, const HostPort& address);

 private:
  void Loop();

  const Done done_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<ConnectionId, HostPort>> waiting_;  // mutex_
  bool stop_ = false;                                      // mutex_
  std::thread thread_;                                     // mutex_
};

}  // namespace trunkline::transport::ucx
