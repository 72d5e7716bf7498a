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

// The same host with another port.
SocketAddress WithPort(const SocketAddress& address, uint16_t port);
SocketAddress FromIpv4(const uint8_t (&ipv4)[4], uint16_t port);

// An IPv4 address of the interface that has `address`, with port 0; `address`
// itself with port 0 when it is IPv4 already or the interface has none. An IPv4
// address that is mapped into IPv6 counts as IPv4.
SocketAddress Ipv4OfSameInterface(const SocketAddress& address);

// Whether a process of this machine (of this network namespace) has the
// address: loopback, or an address of one of the interfaces.
bool IsOfThisHost(const SocketAddress& address);

// Host and port in numbers.
HostPort ToHostPort(const SocketAddress& address);

// An address that other machines can dial for a listener on all interfaces: the
// first one of this machine that is not loopback, of the same family; loopback
// when there is no other. A listener on one address: that address.
HostPort DialableAddress(const SocketAddress& listener);

}  // namespace trunkline::transport::ucx
