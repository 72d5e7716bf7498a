#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace trunkline::dispatch {

// XXH3-64 of a whole frame (at least a header) with its checksum field taken as
// zero.
uint64_t FrameChecksum(std::span<const std::byte> frame);

}  // namespace trunkline::dispatch
