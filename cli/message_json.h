#pragma once

// A protobuf message as JSON for programs: field names as in the proto, 64-bit
// numbers as numbers (protobuf's own mapping quotes them), enums as their lower
// case names without the type's prefix, every scalar present. Pure.

#include <google/protobuf/message.h>

#include <nlohmann/json.hpp>

namespace trunkline::cli {

// Fields stand in the order of their numbers.
nlohmann::ordered_json MessageJson(const google::protobuf::Message& message);

}  // namespace trunkline::cli
