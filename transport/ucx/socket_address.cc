#include "transport/ucx/socket_address.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace trunkline::transport::ucx {
namespace {

bool IsWildcard(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr ==
           htonl(INADDR_ANY);
  }
  return IN6_IS_ADDR_UNSPECIFIED(
      &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

// A link-local address means nothing without the dialer's own interface name.
bool IsLinkLocal(const sockaddr* address) {
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_LINKLOCAL(
             &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

socklen_t LengthOf(int family) {
  return family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
}

const in6_addr& Ipv6(const sockaddr* address) {
  return reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
}

// In network order.
uint32_t Ipv4(const sockaddr* address) {
  return reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr;
}

bool IsLoopback(const sockaddr* address) {
  return address->sa_family == AF_INET
             ? (ntohl(Ipv4(address)) >> 24) == 127
             : IN6_IS_ADDR_LOOPBACK(&Ipv6(address)) != 0;
}

// The name of the interface that has the IPv6 address, or nothing.
std::string InterfaceOf(const ifaddrs* all, const in6_addr& address) {
  for (const ifaddrs* at = all; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr != nullptr && at->ifa_addr->sa_family == AF_INET6 &&
        IN6_ARE_ADDR_EQUAL(&Ipv6(at->ifa_addr), &address)) {
      return at->ifa_name;
    }
  }
  return "";
}

}  // namespace

absl::StatusOr<std::vector<SocketAddress>> LookUp(const HostPort& address,
                                                  bool numeric_only) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (numeric_only ? AI_NUMERICHOST : 0);
  addrinfo* found = nullptr;
  const int rc =
      getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(),
                  &hints, &found);
  if (rc != 0) {
    const std::string why =
        absl::StrCat("host \"", address.host, "\": ", gai_strerror(rc));
    return numeric_only ? absl::NotFoundError(why)
                        : absl::UnavailableError(why);
  }
  std::vector<SocketAddress> out;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    if (at->ai_family != AF_INET && at->ai_family != AF_INET6) continue;
    SocketAddress one;
    std::memcpy(&one.storage, at->ai_addr, at->ai_addrlen);
    one.length = at->ai_addrlen;
    out.push_back(one);
  }
  freeaddrinfo(found);
  if (out.empty()) {
    return absl::UnavailableError(absl::StrCat(
        "host \"", address.host, "\" has no IPv4 and no IPv6 address"));
  }
  return out;
}

SocketAddress WithPort(const SocketAddress& address, uint16_t port) {
  SocketAddress out = address;
  if (address.get()->sa_family == AF_INET) {
    reinterpret_cast<sockaddr_in*>(&out.storage)->sin_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in6*>(&out.storage)->sin6_port = htons(port);
  }
  return out;
}

SocketAddress FromIpv4(const uint8_t (&ipv4)[4], uint16_t port) {
  SocketAddress out;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&out.storage);
  v4->sin_family = AF_INET;
  v4->sin_port = htons(port);
  std::memcpy(&v4->sin_addr, ipv4, sizeof ipv4);
  out.length = sizeof(sockaddr_in);
  return out;
}

SocketAddress Ipv4OfSameInterface(const SocketAddress& address) {
  if (address.get()->sa_family == AF_INET) return WithPort(address, 0);
  const in6_addr& v6 = Ipv6(address.get());
  uint8_t ipv4[4];
  if (IN6_IS_ADDR_V4MAPPED(&v6)) {
    std::memcpy(ipv4, &v6.s6_addr[12], sizeof ipv4);
    return FromIpv4(ipv4, 0);
  }
  SocketAddress out = WithPort(address, 0);
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return out;
  const std::string interface = InterfaceOf(all, v6);
  for (const ifaddrs* at = all; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || at->ifa_addr->sa_family != AF_INET ||
        interface != at->ifa_name) {
      continue;
    }
    std::memcpy(ipv4,
                &reinterpret_cast<const sockaddr_in*>(at->ifa_addr)->sin_addr,
                sizeof ipv4);
    out = FromIpv4(ipv4, 0);
    break;
  }
  freeifaddrs(all);
  return out;
}

bool IsOfThisHost(const SocketAddress& address) {
  const SocketAddress plain = address.get()->sa_family == AF_INET6 &&
                                      IN6_IS_ADDR_V4MAPPED(&Ipv6(address.get()))
                                  ? Ipv4OfSameInterface(address)
                                  : address;
  if (IsLoopback(plain.get())) return true;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return false;
  bool found = false;
  for (const ifaddrs* at = all; at != nullptr && !found; at = at->ifa_next) {
    if (at->ifa_addr == nullptr ||
        at->ifa_addr->sa_family != plain.get()->sa_family) {
      continue;
    }
    found = plain.get()->sa_family == AF_INET6
                ? IN6_ARE_ADDR_EQUAL(&Ipv6(at->ifa_addr), &Ipv6(plain.get()))
                : Ipv4(at->ifa_addr) == Ipv4(plain.get());
  }
  freeifaddrs(all);
  return found;
}

HostPort ToHostPort(const SocketAddress& address) {
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (getnameinfo(address.get(), address.length, host, sizeof host, port,
                  sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return {"unknown", 0};
  }
  uint32_t number = 0;
  if (!absl::SimpleAtoi(port, &number)) number = 0;
  return {host, static_cast<uint16_t>(number)};
}

HostPort DialableAddress(const SocketAddress& listener) {
  HostPort out = ToHostPort(listener);
  if (!IsWildcard(listener.get())) return out;
  const int family = listener.get()->sa_family;
  out.host = family == AF_INET ? "127.0.0.1" : "::1";
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return out;
  for (const ifaddrs* at = all; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || at->ifa_addr->sa_family != family ||
        (at->ifa_flags & IFF_UP) == 0 || (at->ifa_flags & IFF_LOOPBACK) != 0 ||
        IsLinkLocal(at->ifa_addr)) {
      continue;
    }
    SocketAddress one;
    one.length = LengthOf(family);
    std::memcpy(&one.storage, at->ifa_addr, one.length);
    out.host = ToHostPort(one).host;
    break;
  }
  freeifaddrs(all);
  return out;
}

}  // namespace trunkline::transport::ucx
