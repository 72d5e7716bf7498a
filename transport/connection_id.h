#pragma once

#include <atomic>

#include "transport/transport.h"

namespace trunkline::transport {

// One counter for all backends of the process, so that an id names one
// connection however many transports a process holds.
inline ConnectionId NextConnectionId() {
  static std::atomic<uint64_t> next{1};
  return ConnectionId(next.fetch_add(1, std::memory_order_relaxed));
}

}  // namespace trunkline::transport
