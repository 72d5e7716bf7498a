#pragma once

// Memory on huge pages for buffers that are a few huge pages long and not a
// multiple of them, such as one expert's matrices: each on its own would either
// waste most of its last huge page or have small pages there. They are cut, one
// behind the other, from regions that are advised as a whole.

#include <cstddef>

namespace trunkline {

inline constexpr size_t kHugePageBytes = size_t{2} << 20;

// `bytes` of zeros, on a page boundary, to be given back with FreeHuge. Aborts
// when there is no address space left. Thread-safe.
std::byte* AllocateHuge(size_t bytes);
// The memory goes back to the system at once; its addresses do when nothing of
// their region is in use.
void FreeHuge(std::byte* data, size_t bytes);

}  // namespace trunkline
