#pragma once

// Whole lines out of a stream of pieces. Pure.

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace trunkline::cli {

class LineReader {
 public:
  // A line that grows beyond line_bytes_max is handed on in parts.
  explicit LineReader(size_t line_bytes_max = 64 * 1024)
      : line_bytes_max_(line_bytes_max) {}

  // The lines that `bytes` completes, without their ends.
  std::vector<std::string> Append(absl::string_view bytes);
  // What the stream ended with, when that is not empty.
  std::vector<std::string> Finish();

 private:
  const size_t line_bytes_max_;
  std::string rest_;
};

}  // namespace trunkline::cli
