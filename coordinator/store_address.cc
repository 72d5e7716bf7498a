#include "coordinator/store_address.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"

namespace trunkline::coordinator {
namespace {

constexpr char kDefaultPrefix[] = "/trunkline";

absl::Status Bad(const std::string& text, const std::string& why) {
  return absl::InvalidArgumentError(
      absl::StrCat("store \"", text, "\": ", why));
}

absl::Status CheckEndpoint(const std::string& text,
                           const std::string& endpoint) {
  const size_t colon = endpoint.rfind(':');
  uint32_t port = 0;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(endpoint.substr(colon + 1), &port) || port == 0 ||
      port > 65535) {
    return Bad(text, absl::StrCat("\"", endpoint, "\" is not host:port"));
  }
  return absl::OkStatus();
}

absl::StatusOr<StoreAddress> ParseEtcd(const std::string& text,
                                       absl::string_view rest) {
  StoreAddress address;
  address.kind = StoreAddress::Kind::kEtcd;
  const size_t slash = rest.find('/');
  const absl::string_view hosts = rest.substr(0, slash);
  address.prefix = slash == absl::string_view::npos
                       ? kDefaultPrefix
                       : std::string(rest.substr(slash));
  while (!address.prefix.empty() && address.prefix.back() == '/') {
    address.prefix.pop_back();
  }
  if (address.prefix.empty()) address.prefix = kDefaultPrefix;
  if (absl::StrContains(hosts, '@')) {
    return absl::UnimplementedError(absl::StrCat(
        "store \"", text,
        "\": a user and password are not supported; let only coordinators "
        "reach etcd's port"));
  }
  for (const absl::string_view host : absl::StrSplit(hosts, ',')) {
    address.endpoints.emplace_back(host);
    TL_RETURN_IF_ERROR(CheckEndpoint(text, address.endpoints.back()));
  }
  return address;
}

}  // namespace

absl::StatusOr<StoreAddress> ParseStoreAddress(const std::string& text) {
  absl::string_view rest = text;
  if (rest.empty()) return StoreAddress();
  if (absl::ConsumePrefix(&rest, "sqlite:")) {
    if (rest.empty()) return Bad(text, "names no file");
    StoreAddress address;
    address.kind = StoreAddress::Kind::kSqlite;
    address.path = std::string(rest);
    return address;
  }
  if (absl::ConsumePrefix(&rest, "etcd://")) return ParseEtcd(text, rest);
  if (absl::StartsWith(rest, "etcds://") || absl::StartsWith(rest, "https:")) {
    return absl::UnimplementedError(absl::StrCat(
        "store \"", text,
        "\": TLS to etcd is not supported; write etcd://host:port and keep "
        "the connection inside a trusted network or tunnel"));
  }
  return Bad(text, "is neither sqlite:PATH nor etcd://host:port,.../prefix");
}

std::string FormatStoreAddress(const StoreAddress& address) {
  switch (address.kind) {
    case StoreAddress::Kind::kMemory:
      return "memory";
    case StoreAddress::Kind::kSqlite:
      return absl::StrCat("sqlite:", address.path);
    case StoreAddress::Kind::kEtcd:
      break;
  }
  return absl::StrCat("etcd://", absl::StrJoin(address.endpoints, ","),
                      address.prefix);
}

}  // namespace trunkline::coordinator
