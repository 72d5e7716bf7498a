#pragma once

// Flags with a meaning beyond a number or a string. A bad value ends the parse
// with a message that names the flag and the value.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace trunkline::cli {

// "30s", "1m30s", "250ms"; not negative. INVALID_ARGUMENT names the text.
absl::StatusOr<absl::Duration> ParseDurationText(const std::string& text);
// "4096", "64KiB", "1.5G", "2TB": powers of 1024 whatever the spelling.
absl::StatusOr<int64_t> ParseBytesText(absl::string_view text);
// "0-3,8": ascending or not, each once.
absl::StatusOr<std::vector<int>> ParseCpuList(absl::string_view text);
enum class Port { kAny, kDialable };  // kAny: 0 stands for a free one
absl::Status CheckAddress(const std::string& text, Port port);

// Each adds `name` to the command; *value holds the default and gets the value.
CLI::Option* AddDurationFlag(CLI::App* command, const std::string& name,
                             absl::Duration* value, const std::string& help);
CLI::Option* AddBytesFlag(CLI::App* command, const std::string& name,
                          int64_t* value, const std::string& help);
CLI::Option* AddCpuListFlag(CLI::App* command, const std::string& name,
                            std::vector<int>* value, const std::string& help);
CLI::Option* AddAddressFlag(CLI::App* command, const std::string& name,
                            std::string* value, Port port,
                            const std::string& help);

// One "host:port" to dial, or several with commas between.
CLI::Option* AddAddressListFlag(CLI::App* command, const std::string& name,
                                std::string* value, const std::string& help);

// A finite number within the bounds; an open bound is not part of the range.
struct FloatRange {
  double least = 0, most = 0;
  bool open_least = false, open_most = false;
};
CLI::Validator FiniteIn(const FloatRange& range);

}  // namespace trunkline::cli
