#pragma once

// Time as an argument: cores get `now` from their edge, and edges get it from a
// Clock.

#include "absl/time/time.h"

namespace trunkline {

class Clock {
 public:
  virtual ~Clock() = default;
  // Never goes back within one process. The zero point means nothing.
  virtual absl::Time Now() const = 0;
  static const Clock& Monotonic();  // the process's CLOCK_MONOTONIC
};

class ManualClock : public Clock {
 public:
  absl::Time Now() const override { return now_; }
  void Advance(absl::Duration by) { now_ += by; }

 private:
  absl::Time now_ = absl::UnixEpoch();
};

}  // namespace trunkline
