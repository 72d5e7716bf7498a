#pragma once

// Element types of tensors and of rows on the wire.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace trunkline {

// The numbers are part of the wire format (docs/wire_format.md): never reuse
// one.
enum class DType : uint8_t { kF32 = 1, kF16 = 2, kBF16 = 3 };

int64_t DTypeBytes(DType dtype);
absl::string_view DTypeName(DType dtype);  // "F32", "F16", "BF16"
absl::StatusOr<DType> ParseDType(
    absl::string_view name);  // safetensors spelling

}  // namespace trunkline
