#pragma once

// One safetensors file: an 8-byte little-endian header length, a JSON header,
// then the tensors' bytes. Reading the header validates all of it, so whoever
// holds a SafetensorsHeader may trust every offset; weights are mapped later,
// only the byte ranges somebody asks for.

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace trunkline::model {

// As stored: the element type may be one that this program only recognises.
struct StoredTensor {
  std::string name;
  std::string dtype;  // "BF16", "F8_E4M3", ...
  std::vector<int64_t> shape;
  int64_t offset = 0;  // from the start of the file
  int64_t bytes = 0;
};

struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;  // by offset
  int64_t data_offset = 0;            // where the tensors' bytes begin
};

// The safetensors format's own limit.
inline constexpr int64_t kSafetensorsHeaderBytesMax = 100'000'000;

// `prefix`: at least the first 8 + header length bytes of the file, or the
// whole file when it is shorter. Pure. INVALID_ARGUMENT names file and tensor:
// truncated file, a header length that lies, a header that is no JSON object,
// duplicate names, unknown element types, negative or overflowing shapes,
// offsets that overlap, leave a gap, leave the file or do not match the shape.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(
    absl::string_view prefix, int64_t file_bytes, const std::string& file);

// A page-aligned mapping of a part of a file, read-only. Movable; unmaps on
// destruction.
class MappedRange {
 public:
  MappedRange() = default;
  MappedRange(MappedRange&& other) noexcept;
  MappedRange& operator=(MappedRange&& other) noexcept;
  ~MappedRange();

  // The byte at `offset` of the file, which lies inside the range.
  const std::byte* At(int64_t offset) const;
  int64_t mapped_bytes() const { return bytes_; }
  // Gives the pages back to the system; a later read fetches them again.
  void Release() const;

 private:
  friend class SafetensorsFile;
  void* address_ = nullptr;
  int64_t offset_ = 0;  // of address_ in the file, page-aligned
  int64_t bytes_ = 0;
};

// An open file. Immutable after Open and safe to use from many threads.
class SafetensorsFile {
 public:
  // NOT_FOUND when there is no such file.
  static absl::StatusOr<std::shared_ptr<const SafetensorsFile>> Open(
      const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::string& path() const { return path_; }
  const SafetensorsHeader& header() const { return header_; }
  int64_t file_bytes() const { return file_bytes_; }

  // Maps the pages that hold [offset, offset + bytes). FAILED_PRECONDITION
  // when the file has become shorter since Open: touching a page beyond the
  // end of a file would end the process.
  absl::StatusOr<MappedRange> Map(int64_t offset, int64_t bytes) const;
  // Copies bytes without mapping them.
  absl::Status Read(int64_t offset, int64_t bytes, void* out) const;

 private:
  SafetensorsFile() = default;
  std::string path_;
  int fd_ = -1;
  int64_t file_bytes_ = 0;
  SafetensorsHeader header_;
};

}  // namespace trunkline::model
