#pragma once

// One log line per event, to stderr, with the process's role and name in front.
// Cores do not log: they return what happened and the edge writes it.

#include <spdlog/spdlog.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace trunkline {

// role: "coordinator", "trunk-worker", ...; level: trace | debug | info | warn
// | error | off.
absl::Status InitLogging(absl::string_view role, absl::string_view name,
                         absl::string_view level);

}  // namespace trunkline

#define TL_LOG_INFO(...) ::spdlog::info(__VA_ARGS__)
#define TL_LOG_WARN(...) ::spdlog::warn(__VA_ARGS__)
#define TL_LOG_ERROR(...) ::spdlog::error(__VA_ARGS__)
#define TL_LOG_DEBUG(...) ::spdlog::debug(__VA_ARGS__)
