#pragma once

// Addresses of the data plane: "scheme://rest", where rest is a name
// (inprocess) or a host and port (ucx). Pure text; nothing is looked up here.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace trunkline::transport {

struct HostPort {
  std::string host;  // without brackets
  uint16_t port = 0;
};

// "ucx://a:1" -> "a:1" for scheme "ucx". An address without a scheme is taken
// as it is; another scheme or an empty rest is INVALID_ARGUMENT.
absl::StatusOr<std::string> StripScheme(const std::string& address,
                                        const std::string& scheme);

// "host:port", "1.2.3.4:port", "[v6]:port"; the port is decimal, 0..65535.
absl::StatusOr<HostPort> ParseHostPort(const std::string& text);

// The inverse: brackets around a host that holds a colon.
std::string FormatHostPort(const HostPort& address);

}  // namespace trunkline::transport
