#include "coordinator/coordinator_options.h"

#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace trunkline::coordinator {
namespace {

absl::Status CheckAddress(const char* option, const std::string& address) {
  const size_t colon = address.rfind(':');
  uint32_t port = 0;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat(option, " '", address, "' is not host:port"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CoordinatorOptions::Validate() const {
  TL_RETURN_IF_ERROR(CheckAddress("listen", listen));
  if (!metrics.empty()) TL_RETURN_IF_ERROR(CheckAddress("metrics", metrics));
  if (watchers_max < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("watchers_max is ", watchers_max, ", at least 1"));
  }
  if (!(rebalance_min_gain >= 0 && rebalance_min_gain < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rebalance_min_gain is ", rebalance_min_gain,
                     ", 0 to below 1 is possible"));
  }
  static const std::set<std::string> kLevels = {
      "", "trace", "debug", "info", "warn", "error", "off"};
  if (kLevels.count(log_level) == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("log_level '", log_level,
                     "' is none of trace, debug, info, warn, error, off"));
  }
  static const std::set<std::string> kClasses = {"auto", "portable", "bf16dot"};
  if (kClasses.count(numerics) == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "numerics '", numerics, "' is none of auto, portable, bf16dot"));
  }
  TL_ASSIGN_OR_RETURN(const StoreAddress where, Store());
  if (where.kind == StoreAddress::Kind::kEtcd &&
      (store_lease < absl::Seconds(1) || store_lease > absl::Hours(1) ||
       store_lease != absl::Trunc(store_lease, absl::Seconds(1)))) {
    return absl::InvalidArgumentError(
        absl::StrCat("store_lease is ", absl::FormatDuration(store_lease),
                     ", whole seconds from 1s to 1h are possible"));
  }
  return Core().Validate();
}

absl::StatusOr<StoreAddress> CoordinatorOptions::Store() const {
  if (!store.empty() && !state_file.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("store is \"", store, "\" and state_file is \"",
                     state_file, "\": only one of them can be"));
  }
  if (store.empty() && !state_file.empty()) {
    StoreAddress file;
    file.kind = StoreAddress::Kind::kSqlite;
    file.path = state_file;
    return file;
  }
  return ParseStoreAddress(store);
}

CoreOptions CoordinatorOptions::Core() const {
  CoreOptions core;
  core.membership.lease = lease;
  core.numerics_class = numerics == "auto" ? "" : numerics;
  core.driver.expert_workers = expert_workers;
  core.driver.replicas = replicas;
  core.driver.repair_delay = repair_delay;
  core.driver.redundancy_delay = redundancy_delay;
  core.driver.stage_timeout = stage_timeout;
  core.rebalance_interval = rebalance_interval;
  return core;
}

}  // namespace trunkline::coordinator
