#pragma once

// Where a coordinator keeps its state, as operators write it: "sqlite:PATH" or
// "etcd://host:port,host:port/prefix". Pure text; nothing is opened here.

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace trunkline::coordinator {

struct StoreAddress {
  enum class Kind : uint8_t { kMemory, kSqlite, kEtcd };
  Kind kind = Kind::kMemory;
  std::string path;                    // sqlite
  std::vector<std::string> endpoints;  // etcd: "host:port", at least one
  std::string prefix;                  // etcd: "/trunkline", no slash behind it
};

// Empty: in memory. INVALID_ARGUMENT quotes the text and says what is wrong;
// UNIMPLEMENTED for TLS and for a user name, which the etcd client lacks.
absl::StatusOr<StoreAddress> ParseStoreAddress(const std::string& text);

// The inverse, for logs.
std::string FormatStoreAddress(const StoreAddress& address);

}  // namespace trunkline::coordinator
