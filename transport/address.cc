#include "transport/address.h"

#include <algorithm>
#include <cctype>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace trunkline::transport {
namespace {

// The longest name that DNS carries, and more than any textual IPv6 address
// with a zone.
constexpr size_t kHostCharsMax = 253;

absl::Status Bad(const std::string& text, const std::string& why) {
  return absl::InvalidArgumentError(
      absl::StrCat("bad address \"", text.substr(0, 300), "\": ", why));
}

bool IsHostCharacter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' ||
         c == '_';
}

}  // namespace

absl::StatusOr<std::string> StripScheme(const std::string& address,
                                        const std::string& scheme) {
  std::string rest = address;
  if (const size_t at = address.find("://"); at != std::string::npos) {
    if (address.substr(0, at) != scheme) {
      return Bad(address,
                 absl::StrCat("the scheme is \"",
                              address.substr(0, std::min<size_t>(at, 32)),
                              "\", this transport is \"", scheme, "\""));
    }
    rest = address.substr(at + 3);
  }
  if (rest.empty()) return Bad(address, "nothing after the scheme");
  return rest;
}

absl::StatusOr<HostPort> ParseHostPort(const std::string& text) {
  HostPort out;
  size_t colon;
  if (!text.empty() && text[0] == '[') {
    const size_t close = text.find(']');
    if (close == std::string::npos) return Bad(text, "\"[\" without \"]\"");
    out.host = text.substr(1, close - 1);
    colon = close + 1;
    if (colon >= text.size() || text[colon] != ':')
      return Bad(text, "no \":port\" after \"]\"");
    if (out.host.find(':') == std::string::npos)
      return Bad(text, "brackets are for IPv6 addresses");
    for (char c : out.host) {
      if (!IsHostCharacter(c) && c != ':' && c != '%')
        return Bad(text, "a character that no IPv6 address has");
    }
  } else {
    colon = text.rfind(':');
    if (colon == std::string::npos) return Bad(text, "no \":port\"");
    out.host = text.substr(0, colon);
    if (out.host.find(':') != std::string::npos)
      return Bad(text, "an IPv6 address needs brackets, as in [::1]:80");
    for (char c : out.host) {
      if (!IsHostCharacter(c))
        return Bad(text, "a character that no host name has");
    }
  }
  if (out.host.empty()) return Bad(text, "no host");
  if (out.host.size() > kHostCharsMax) return Bad(text, "the host is too long");
  const std::string port = text.substr(colon + 1);
  uint32_t value = 0;
  if (port.empty() || port.size() > 5 ||
      !std::all_of(port.begin(), port.end(),
                   [](char c) { return c >= '0' && c <= '9'; }) ||
      !absl::SimpleAtoi(port, &value) || value > 65535) {
    return Bad(text, absl::StrCat("the port \"", port.substr(0, 32),
                                  "\" is no number from 0 to 65535"));
  }
  out.port = static_cast<uint16_t>(value);
  return out;
}

std::string FormatHostPort(const HostPort& address) {
  if (address.host.find(':') != std::string::npos)
    return absl::StrCat("[", address.host, "]:", address.port);
  return absl::StrCat(address.host, ":", address.port);
}

}  // namespace trunkline::transport
