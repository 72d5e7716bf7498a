#pragma once

// Which byte ranges of a file this process has mapped, as the kernel lists
// them in /proc/self/smaps.

#include <cstdint>
#include <string>
#include <vector>

namespace trunkline::model {

class MappedPages {
 public:
  static MappedPages OfFile(const std::string& path);

  int64_t bytes() const;  // mapped, in whole pages
  int64_t resident_bytes() const { return resident_bytes_; }
  int64_t page_bytes() const { return page_bytes_; }
  // How much of [offset, offset + bytes) of the file is mapped.
  int64_t BytesIn(int64_t offset, int64_t bytes) const;
  // Mapped pages that lie wholly inside [offset, offset + bytes).
  int64_t WholePagesIn(int64_t offset, int64_t bytes) const;

 private:
  struct Range {
    int64_t begin = 0;  // in the file
    int64_t end = 0;
  };
  std::vector<Range> ranges_;
  int64_t resident_bytes_ = 0;
  int64_t page_bytes_ = 0;
};

}  // namespace trunkline::model
