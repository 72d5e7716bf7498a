#pragma once

// Numbers and tables as people read them. Pure.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace trunkline::cli {

std::string HumanBytes(int64_t bytes);  // "512 B", "1.50 KiB", "31.9 GiB"
std::string HumanCount(int64_t count);  // "999", "1.25 k", "31.6 B"
std::string HumanDuration(
    absl::Duration duration);  // "12 ms", "3.4 s", "2m05s"

// Columns as wide as their widest cell; text to the left, numbers to the right.
class Table {
 public:
  enum class Align : uint8_t { kLeft, kRight };
  Table(std::vector<std::string> header, std::vector<Align> align);
  void AddRow(std::vector<std::string> cells);
  std::string ToString() const;  // a line per row, each ended

 private:
  std::vector<Align> align_;
  std::vector<std::vector<std::string>> rows_;
};

// "[######......] 50%" of `width` characters between the brackets. A total of 0
// shows a mark that wanders with `tick`, for work without a known end.
std::string ProgressBar(int64_t done, int64_t total, int width, int64_t tick);

// The front of `text` on one line of at most `columns` bytes, "..." where it
// was cut; never inside a UTF-8 character.
std::string FitLine(const std::string& text, int columns);

}  // namespace trunkline::cli
