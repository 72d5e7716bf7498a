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
