#include "cli/line_reader.h"

#include <utility>

namespace trunkline::cli {

std::vector<std::string> LineReader::Append(absl::string_view bytes) {
  std::vector<std::string> lines;
  for (const char c : bytes) {
    if (c != '\n') rest_.push_back(c);
    if (c == '\n' || rest_.size() == line_bytes_max_) {
      lines.push_back(std::exchange(rest_, {}));
    }
  }
  return lines;
}

std::vector<std::string> LineReader::Finish() {
  std::vector<std::string> lines;
  if (!rest_.empty()) lines.push_back(std::exchange(rest_, {}));
  return lines;
}

}  // namespace trunkline::cli
