#include "control/coordinator_addresses.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "control/status_to_grpc.h"

namespace trunkline::control {

absl::StatusOr<std::vector<std::string>> ParseCoordinatorAddresses(
    const std::string& text) {
  std::vector<std::string> addresses;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::string address(part);
    const size_t colon = address.rfind(':');
    uint32_t port = 0;
    if (colon == std::string::npos || colon == 0 ||
        !absl::SimpleAtoi(address.substr(colon + 1), &port) || port == 0 ||
        port > 65535) {
      return absl::InvalidArgumentError(absl::StrCat(
          "coordinator \"", address, "\" is not host:port with a port to dial",
          address == text ? "" : absl::StrCat(" (in \"", text, "\")")));
    }
    if (std::find(addresses.begin(), addresses.end(), address) ==
        addresses.end()) {
      addresses.push_back(address);
    }
  }
  return addresses;
}

bool CoordinatorAddresses::OnFailure(const absl::Status& status) {
  // Any other answer is the leader's own.
  if (!absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status)) {
    return false;
  }
  ++failures_;
  const std::string before = current();
  // The list is gone through whatever followers say: one that was named and
  // failed may be named on for as long as its lease runs.
  const bool from_list = named_.empty();
  if (from_list) next_ = (next_ + 1) % listed_.size();
  named_.clear();
  const std::string leader = LeaderIn(status);
  if ((from_list || failures_ == 1) && leader != before &&
      ParseCoordinatorAddresses(leader).ok()) {
    named_ = leader;
  }
  return current() != before;
}

}  // namespace trunkline::control
