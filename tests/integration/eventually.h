#pragma once

// Waiting for a condition, with a limit: never for time to pass.

#include <poll.h>

#include <chrono>

namespace trunkline {

// True as soon as `condition()` is; false when it was not within `limit`.
template <typename Condition>
bool Eventually(std::chrono::milliseconds limit, const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (true) {
    if (condition()) return true;
    if (std::chrono::steady_clock::now() >= end) return false;
    poll(nullptr, 0, 5);
  }
}

}  // namespace trunkline
