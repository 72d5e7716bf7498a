#include "common/dtype.h"

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace trunkline {

int64_t DTypeBytes(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 4;
    case DType::kF16:
      return 2;
    case DType::kBF16:
      return 2;
  }
  TL_CHECK(false) << "dtype " << static_cast<int>(dtype);
  return 0;
}

absl::string_view DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kF16:
      return "F16";
    case DType::kBF16:
      return "BF16";
  }
  return "?";
}

absl::StatusOr<DType> ParseDType(absl::string_view name) {
  if (name == "F32") return DType::kF32;
  if (name == "F16") return DType::kF16;
  if (name == "BF16") return DType::kBF16;
  return absl::InvalidArgumentError(absl::StrCat(
      "dtype \"", name, "\" is not supported (F32, F16 and BF16 are)"));
}

}  // namespace trunkline
