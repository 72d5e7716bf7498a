#pragma once

// Which of several coordinators to ask: the one that answered last, else the
// one that a follower names as leader, else the next of the list. Pure. Not
// thread-safe.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace trunkline::control {

// "host:port,host:port" -> its parts. INVALID_ARGUMENT names the part that is
// no address that can be dialled.
absl::StatusOr<std::vector<std::string>> ParseCoordinatorAddresses(
    const std::string& text);

class CoordinatorAddresses {
 public:
  // listed: at least one.
  explicit CoordinatorAddresses(std::vector<std::string> listed)
      : listed_(std::move(listed)) {}

  const std::string& current() const {
    return named_.empty() ? listed_[next_] : named_;
  }
  // Takes a call's failure into account: whoever does not lead or does not
  // answer is not asked again before the others were. True when the next call
  // goes to another coordinator.
  bool OnFailure(const absl::Status& status);
  // How many calls in a row have failed; 0 after OnSuccess.
  size_t failures() const { return failures_; }
  void OnSuccess() { failures_ = 0; }
  size_t size() const { return listed_.size(); }

 private:
  const std::vector<std::string> listed_;
  size_t next_ = 0;
  // The leader as a follower named it, while it is tried.
  std::string named_;
  size_t failures_ = 0;
};

}  // namespace trunkline::control
