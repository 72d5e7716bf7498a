#pragma once

// How a server process tells whoever started it where it listens: one JSON
// object per line on a file descriptor, or its address in a file.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace trunkline::cli {

struct Announcement {
  enum class Kind : uint8_t { kLoading, kListening };
  Kind kind = Kind::kListening;
  int64_t bytes_done = 0, bytes_total = 0;  // kLoading
  std::string address, metrics_address;     // kListening
};

// One line, ended.
std::string FormatAnnouncement(const Announcement& announcement);
// INVALID_ARGUMENT for anything else.
absl::StatusOr<Announcement> ParseAnnouncement(absl::string_view line);

// Writes `line` and a line end to `file` so that a reader sees all or nothing.
absl::Status WriteAddressFile(const std::string& file, const std::string& line);

}  // namespace trunkline::cli
