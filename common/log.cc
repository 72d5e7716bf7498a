#include "common/log.h"

#include <spdlog/sinks/stdout_sinks.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace trunkline {

absl::Status InitLogging(absl::string_view role, absl::string_view name,
                         absl::string_view level) {
  const std::string wanted(level);
  const auto parsed = spdlog::level::from_str(wanted);
  if (parsed == spdlog::level::off && wanted != "off") {
    return absl::InvalidArgumentError(
        absl::StrCat("log level \"", level,
                     "\" is none of trace, debug, info, warn, error, off"));
  }
  std::string who(role);
  if (!name.empty()) absl::StrAppend(&who, " ", name);
  auto logger = std::make_shared<spdlog::logger>(
      who, std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %L [%n] %v");
  logger->set_level(parsed);
  logger->flush_on(spdlog::level::info);
  // A thread that logs at this moment may still be in the logger before: all
  // of them live as long as the process.
  static std::mutex mutex;
  static auto* const loggers = new std::vector<std::shared_ptr<spdlog::logger>>{
      spdlog::default_logger()};
  std::lock_guard<std::mutex> lock(mutex);
  loggers->push_back(logger);
  spdlog::set_default_logger(std::move(logger));
  return absl::OkStatus();
}

}  // namespace trunkline
