#include "common/clock.h"

#include <time.h>

namespace trunkline {
namespace {

class MonotonicClock : public Clock {
 public:
  absl::Time Now() const override {
    timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return absl::TimeFromTimespec(ts);
  }
};

}  // namespace

const Clock& Clock::Monotonic() {
  static const MonotonicClock clock;
  return clock;
}

}  // namespace trunkline
