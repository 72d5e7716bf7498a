#include "dispatch/frame_checksum.h"

// Inlined, so that the hash state can live on the stack whatever version of the
// shared library is installed.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <array>
#include <cstring>

#include "common/check.h"
#include "dispatch/frame_layout.h"

namespace trunkline::dispatch {

uint64_t FrameChecksum(std::span<const std::byte> frame) {
  TL_CHECK_GE(frame.size(), kFrameHeaderBytes);
  std::array<std::byte, kFrameHeaderBytes> header;
  std::memcpy(header.data(), frame.data(), kFrameHeaderBytes);
  std::memset(header.data() + header_offset::kChecksum, 0, sizeof(uint64_t));
  XXH3_state_t state;
  XXH3_INITSTATE(&state);
  XXH3_64bits_reset(&state);
  XXH3_64bits_update(&state, header.data(), header.size());
  XXH3_64bits_update(&state, frame.data() + kFrameHeaderBytes,
                     frame.size() - kFrameHeaderBytes);
  return XXH3_64bits_digest(&state);
}

}  // namespace trunkline::dispatch
