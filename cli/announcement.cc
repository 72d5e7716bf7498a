#include "cli/announcement.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace trunkline::cli {

using nlohmann::json;

std::string FormatAnnouncement(const Announcement& announcement) {
  json line;
  if (announcement.kind == Announcement::Kind::kLoading) {
    line = {{"event", "loading"},
            {"bytes_done", announcement.bytes_done},
            {"bytes_total", announcement.bytes_total}};
  } else {
    line = {{"event", "listening"},
            {"address", announcement.address},
            {"metrics_address", announcement.metrics_address}};
  }
  return line.dump() + "\n";
}

absl::StatusOr<Announcement> ParseAnnouncement(absl::string_view line) {
  const json parsed = json::parse(line.begin(), line.end(), nullptr, false);
  const auto is_string = [&](const char* name) {
    return parsed.contains(name) && parsed[name].is_string();
  };
  const auto is_count = [&](const char* name) {
    return parsed.contains(name) && parsed[name].is_number_integer();
  };
  if (parsed.is_object() && is_string("event")) {
    Announcement announcement;
    if (parsed["event"] == "loading" && is_count("bytes_done") &&
        is_count("bytes_total")) {
      announcement.kind = Announcement::Kind::kLoading;
      announcement.bytes_done = parsed["bytes_done"];
      announcement.bytes_total = parsed["bytes_total"];
      return announcement;
    }
    if (parsed["event"] == "listening" && is_string("address") &&
        is_string("metrics_address")) {
      announcement.address = parsed["address"];
      announcement.metrics_address = parsed["metrics_address"];
      return announcement;
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("not an announcement: ", line));
}

absl::Status WriteAddressFile(const std::string& file,
                              const std::string& line) {
  const std::string unfinished = absl::StrCat(file, ".", getpid());
  std::FILE* stream = std::fopen(unfinished.c_str(), "w");
  if (stream == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("--address-file ", file,
                     ": can not be written: ", std::strerror(errno)));
  }
  const bool written = std::fputs((line + "\n").c_str(), stream) >= 0;
  const bool closed = std::fclose(stream) == 0;
  if (!written || !closed ||
      std::rename(unfinished.c_str(), file.c_str()) != 0) {
    const int error = errno;
    std::remove(unfinished.c_str());
    return absl::FailedPreconditionError(
        absl::StrCat("--address-file ", file,
                     ": can not be written: ", std::strerror(error)));
  }
  return absl::OkStatus();
}

}  // namespace trunkline::cli
