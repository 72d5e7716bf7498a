#include "cli/flags.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"

namespace trunkline::cli {
namespace {

constexpr int kCpuMax = 65535;

absl::Status Bad(absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" ", why));
}

// Parses the flag's text into *value; the library's exception carries the name.
template <typename T, typename Parse>
CLI::Option* AddParsedFlag(CLI::App* command, const std::string& name, T* value,
                           const std::string& help, Parse parse) {
  return command->add_option_function<std::string>(
      name,
      [name, value, parse](const std::string& text) {
        absl::StatusOr<T> parsed = parse(text);
        if (!parsed.ok()) {
          throw CLI::ValidationError(name,
                                     std::string(parsed.status().message()));
        }
        *value = *std::move(parsed);
      },
      help);
}

}  // namespace

absl::StatusOr<absl::Duration> ParseDurationText(const std::string& text) {
  absl::Duration duration;
  if (!absl::ParseDuration(text, &duration)) {
    return Bad(text, "is not a duration such as 30s, 1m30s or 250ms");
  }
  if (duration < absl::ZeroDuration()) return Bad(text, "is negative");
  return duration;
}

absl::StatusOr<int64_t> ParseBytesText(absl::string_view text) {
  const std::string lower = absl::AsciiStrToLower(text);
  absl::string_view number = lower;
  double unit = 1;
  if (!absl::ConsumeSuffix(&number, "ib")) absl::ConsumeSuffix(&number, "b");
  const std::string letters = "kmgtp";
  if (!number.empty()) {
    const size_t power = letters.find(number.back());
    if (power != std::string::npos) {
      unit = std::pow(1024.0, static_cast<double>(power) + 1);
      number.remove_suffix(1);
    }
  }
  double value = 0;
  if (!absl::SimpleAtod(number, &value) || !std::isfinite(value)) {
    return Bad(text, "is not a size such as 4096, 64MiB or 1.5G");
  }
  if (value < 0) return Bad(text, "is negative");
  const double bytes = value * unit;
  if (bytes > static_cast<double>(int64_t{1} << 62)) {
    return Bad(text, "is more than 4 EiB");
  }
  return static_cast<int64_t>(bytes);
}

absl::StatusOr<std::vector<int>> ParseCpuList(absl::string_view text) {
  std::vector<int> cpus;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::vector<absl::string_view> ends = absl::StrSplit(part, '-');
    int first = 0, last = 0;
    if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &first) ||
        !absl::SimpleAtoi(ends.back(), &last) || first < 0 || last < first ||
        last > kCpuMax) {
      return Bad(text, "is not a list of cpus such as 0-3,8");
    }
    for (int cpu = first; cpu <= last; ++cpu) {
      if (std::find(cpus.begin(), cpus.end(), cpu) != cpus.end()) {
        return Bad(text, absl::StrCat("names cpu ", cpu, " twice"));
      }
      cpus.push_back(cpu);
    }
  }
  return cpus;
}

absl::Status CheckAddress(const std::string& text, Port port) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) {
    return Bad(text, "is not host:port");
  }
  int number = -1;
  if (!absl::SimpleAtoi(text.substr(colon + 1), &number) || number < 0 ||
      number > 65535) {
    return Bad(text, "does not end in a port from 0 to 65535");
  }
  if (number == 0 && port == Port::kDialable) {
    return Bad(text, "can not be dialled: the port is 0");
  }
  return absl::OkStatus();
}

CLI::Option* AddDurationFlag(CLI::App* command, const std::string& name,
                             absl::Duration* value, const std::string& help) {
  return AddParsedFlag(command, name, value, help, ParseDurationText)
      ->type_name("DURATION")
      ->default_str(*value == absl::InfiniteDuration()
                        ? "none"
                        : absl::FormatDuration(*value));
}

CLI::Option* AddBytesFlag(CLI::App* command, const std::string& name,
                          int64_t* value, const std::string& help) {
  return AddParsedFlag(
             command, name, value, help,
             [](const std::string& text) { return ParseBytesText(text); })
      ->type_name("SIZE")
      ->default_str(absl::StrCat(*value));
}

CLI::Option* AddCpuListFlag(CLI::App* command, const std::string& name,
                            std::vector<int>* value, const std::string& help) {
  return AddParsedFlag(
             command, name, value, help,
             [](const std::string& text) { return ParseCpuList(text); })
      ->type_name("CPUS");
}

CLI::Option* AddAddressFlag(CLI::App* command, const std::string& name,
                            std::string* value, Port port,
                            const std::string& help) {
  CLI::Option* option = AddParsedFlag(
      command, name, value, help,
      [port](const std::string& text) -> absl::StatusOr<std::string> {
        TL_RETURN_IF_ERROR(CheckAddress(text, port));
        return text;
      });
  option->type_name("HOST:PORT");
  if (!value->empty()) option->default_str(*value);
  return option;
}

CLI::Option* AddAddressListFlag(CLI::App* command, const std::string& name,
                                std::string* value, const std::string& help) {
  CLI::Option* option = AddParsedFlag(
      command, name, value, help,
      [](const std::string& text) -> absl::StatusOr<std::string> {
        for (const absl::string_view part : absl::StrSplit(text, ',')) {
          TL_RETURN_IF_ERROR(CheckAddress(std::string(part), Port::kDialable));
        }
        return text;
      });
  option->type_name("HOST:PORT,...");
  if (!value->empty()) option->default_str(*value);
  return option;
}

CLI::Validator FiniteIn(const FloatRange& range) {
  const std::string text =
      absl::StrCat(range.open_least ? "(" : "[", range.least, ", ",
                   std::isinf(range.most) ? "inf" : absl::StrCat(range.most),
                   range.open_most || std::isinf(range.most) ? ")" : "]");
  return CLI::Validator(
      [range, text](const std::string& value) -> std::string {
        double number = 0;
        const bool inside =
            absl::SimpleAtod(value, &number) && std::isfinite(number) &&
            (range.open_least ? number > range.least : number >= range.least) &&
            (range.open_most ? number < range.most : number <= range.most);
        if (inside) return "";
        return absl::StrCat("\"", value, "\" is not a number in ", text);
      },
      text);
}

}  // namespace trunkline::cli
