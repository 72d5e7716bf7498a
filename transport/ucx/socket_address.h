#pragma once

// Socket addresses: looking host names up and printing numbers.

#include <sys/socket.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "transport/address.h"

namespace trunkline::transport::ucx {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  const sockaddr* get() const {
    return reinterpret_cast<const sockaddr*>(&storage);
  }
};

// All addresses of the host, in the order of the system's preference. With
// `numeric_only` nothing is asked of the network: NOT_FOUND for a name.
// Otherwise it may block for as long as the resolver does.
absl::StatusOr<std::vector<SocketAddress>> LookUp(const HostPort& address,
                                                  bool numeric_only);

// Host and port in numbers.
HostPort ToHostPort(const SocketAddress& address);

// An address that other machines can dial for a listener on all interfaces: the
// first one of this machine that is not loopback, of the same family; loopback
// when there is no other. A listener on one address: that address.
HostPort DialableAddress(const SocketAddress& listener);

}  // namespace trunkline::transport::ucx
