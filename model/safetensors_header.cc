#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "common/tensor_view.h"
#include "model/json_text.h"
#include "model/safetensors_file.h"

namespace trunkline::model {
namespace {

using nlohmann::json;

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kInt64Max = std::numeric_limits<int64_t>::max();

struct ElementType {
  absl::string_view name;
  int64_t bits;
};
// Every type of the format. The owner of a tensor decides which it can use.
constexpr ElementType kElementTypes[] = {
    {"F32", 32}, {"BF16", 16},   {"F16", 16},    {"BOOL", 8},    {"U8", 8},
    {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"U16", 16},
    {"I16", 16}, {"U32", 32},    {"I32", 32},    {"F64", 64},    {"U64", 64},
    {"I64", 64}, {"C64", 64},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},
};

int64_t BitsOfType(absl::string_view name) {
  for (const ElementType& type : kElementTypes) {
    if (type.name == name) return type.bits;
  }
  return 0;
}

absl::Status Fault(const std::string& file, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(file, ": ", what));
}

template <typename... Parts>
absl::Status TensorFault(const std::string& file, const std::string& tensor,
                         const Parts&... parts) {
  return absl::InvalidArgumentError(
      absl::StrCat(file, ": tensor ", tensor, ": ", parts...));
}

// A JSON integer in 0..2^63-1.
bool ReadCount(const json& value, int64_t* count) {
  if (!value.is_number_unsigned()) return false;
  if (value.get<uint64_t>() > static_cast<uint64_t>(kInt64Max)) return false;
  *count = static_cast<int64_t>(value.get<uint64_t>());
  return true;
}

absl::Status ReadShape(const json& value, const std::string& file,
                       StoredTensor* tensor) {
  if (!value.is_array()) {
    return TensorFault(file, tensor->name, "shape is ", JsonForError(value),
                       ", a list is expected");
  }
  for (const json& entry : value) {
    int64_t size = 0;
    if (!ReadCount(entry, &size)) {
      return TensorFault(file, tensor->name, "shape ", JsonForError(value),
                         " holds ", JsonForError(entry),
                         ", a size in 0..2^63-1 is expected");
    }
    tensor->shape.push_back(size);
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> BytesOfShape(const std::string& file,
                                     const StoredTensor& tensor) {
  const int64_t bits = BitsOfType(tensor.dtype);
  if (bits == 0) {
    return TensorFault(file, tensor.name, "unknown dtype \"", tensor.dtype,
                       "\"");
  }
  int64_t total = bits;
  // Multiply the zero sizes first: [0, 2^62, 2^62] is empty, not too large.
  if (std::find(tensor.shape.begin(), tensor.shape.end(), 0) !=
      tensor.shape.end()) {
    return 0;
  }
  for (const int64_t size : tensor.shape) {
    if (__builtin_mul_overflow(total, size, &total)) {
      return TensorFault(file, tensor.name, "shape ", ShapeString(tensor.shape),
                         " of ", tensor.dtype, " is larger than any file");
    }
  }
  if (total % 8 != 0) {
    return TensorFault(file, tensor.name, "shape ", ShapeString(tensor.shape),
                       " of ", tensor.dtype, " does not fill whole bytes");
  }
  return total / 8;
}

absl::StatusOr<StoredTensor> ReadTensor(const std::string& name,
                                        const json& entry, int64_t data_offset,
                                        int64_t file_bytes,
                                        const std::string& file) {
  StoredTensor tensor;
  tensor.name = name;
  if (!entry.is_object()) {
    return TensorFault(file, name, "the entry is ", JsonForError(entry),
                       ", an object is expected");
  }
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!entry.contains(key))
      return TensorFault(file, name, key, " is missing");
  }
  for (const auto& [key, value] : entry.items()) {
    if (key != "dtype" && key != "shape" && key != "data_offsets")
      return TensorFault(file, name, "unknown field ", key);
  }
  if (!entry["dtype"].is_string()) {
    return TensorFault(file, name, "dtype is ", JsonForError(entry["dtype"]),
                       ", a string is expected");
  }
  tensor.dtype = entry["dtype"].get<std::string>();
  TL_RETURN_IF_ERROR(ReadShape(entry["shape"], file, &tensor));
  TL_ASSIGN_OR_RETURN(tensor.bytes, BytesOfShape(file, tensor));

  const json& offsets = entry["data_offsets"];
  int64_t begin = 0, end = 0;
  if (!offsets.is_array() || offsets.size() != 2 ||
      !ReadCount(offsets[0], &begin) || !ReadCount(offsets[1], &end) ||
      begin > end) {
    return TensorFault(file, name, "data_offsets is ", JsonForError(offsets),
                       ", [begin, end] with begin <= end is expected");
  }
  if (end > file_bytes - data_offset) {
    return TensorFault(file, name, "data_offsets [", begin, ", ", end,
                       "] end beyond the file: it holds ",
                       file_bytes - data_offset,
                       " bytes of data (is it truncated?)");
  }
  if (end - begin != tensor.bytes) {
    return TensorFault(file, name, "data_offsets span ", end - begin,
                       " bytes, but shape ", ShapeString(tensor.shape), " of ",
                       tensor.dtype, " takes ", tensor.bytes);
  }
  tensor.offset = data_offset + begin;
  return tensor;
}

// The format wants the data covered once, without holes.
absl::Status CheckCoverage(const SafetensorsHeader& header, int64_t file_bytes,
                           const std::string& file) {
  int64_t next = header.data_offset;
  const StoredTensor* last = nullptr;
  for (const StoredTensor& tensor : header.tensors) {
    if (tensor.offset < next) {
      return TensorFault(file, tensor.name, "its bytes [",
                         tensor.offset - header.data_offset, ", ",
                         tensor.offset + tensor.bytes - header.data_offset,
                         ") overlap those of ", last->name, ", which end at ",
                         next - header.data_offset);
    }
    if (tensor.offset > next) {
      return TensorFault(file, tensor.name, "the ", tensor.offset - next,
                         " bytes before it belong to no tensor");
    }
    next = tensor.offset + tensor.bytes;
    last = &tensor;
  }
  if (next != file_bytes) {
    return Fault(file, absl::StrCat("the last ", file_bytes - next,
                                    " bytes belong to no tensor"));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> HeaderLength(absl::string_view prefix,
                                     int64_t file_bytes,
                                     const std::string& file) {
  if (static_cast<int64_t>(prefix.size()) < kLengthBytes) {
    return Fault(file, absl::StrCat("truncated: ", file_bytes,
                                    " bytes, a safetensors file has at least "
                                    "8"));
  }
  uint64_t length = 0;
  for (int i = 0; i < kLengthBytes; ++i)
    length |= uint64_t{static_cast<uint8_t>(prefix[i])} << (8 * i);
  if (length > static_cast<uint64_t>(kSafetensorsHeaderBytesMax)) {
    return Fault(file, absl::StrCat("the header claims ", length,
                                    " bytes, more than the format's limit of ",
                                    kSafetensorsHeaderBytesMax));
  }
  if (static_cast<int64_t>(length) > file_bytes - kLengthBytes) {
    return Fault(file,
                 absl::StrCat("the header claims ", length, " bytes, but only ",
                              file_bytes - kLengthBytes,
                              " follow (is the file truncated?)"));
  }
  return static_cast<int64_t>(length);
}

}  // namespace

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(
    absl::string_view prefix, int64_t file_bytes, const std::string& file) {
  TL_ASSIGN_OR_RETURN(const int64_t length,
                      HeaderLength(prefix, file_bytes, file));
  if (static_cast<int64_t>(prefix.size()) < kLengthBytes + length) {
    return Fault(file, "truncated: the header is not complete");
  }
  const absl::string_view text = prefix.substr(kLengthBytes, length);
  if (text.empty() || text[0] != '{') {
    return Fault(file, "the header is not a JSON object");
  }
  JsonLimits limits;
  limits.bytes_max = kSafetensorsHeaderBytesMax;
  limits.depth_max = 8;
  TL_ASSIGN_OR_RETURN(const json document,
                      ParseJson(text, absl::StrCat(file, " (header)"), limits));
  if (!document.is_object()) {
    return Fault(file, "the header is not a JSON object");
  }
  SafetensorsHeader header;
  header.data_offset = kLengthBytes + length;
  for (const auto& [name, entry] : document.items()) {
    if (name == "__metadata__") {
      if (!entry.is_object())
        return Fault(file, "__metadata__ is not an object");
      continue;
    }
    TL_ASSIGN_OR_RETURN(
        StoredTensor tensor,
        ReadTensor(name, entry, header.data_offset, file_bytes, file));
    header.tensors.push_back(std::move(tensor));
  }
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const StoredTensor& a, const StoredTensor& b) {
              return a.offset != b.offset ? a.offset < b.offset
                                          : a.bytes < b.bytes;
            });
  TL_RETURN_IF_ERROR(CheckCoverage(header, file_bytes, file));
  return header;
}

}  // namespace trunkline::model
