#pragma once

// A 128-bit digest of a sequence of byte strings, one after the other: that of
// a longer sequence follows from that of its front.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace trunkline::trunk {

using Digest = std::array<uint8_t, 16>;

// XXH3, in its canonical byte order.
Digest DigestOf(const void* data, size_t bytes);

class RunningDigest {
 public:
  RunningDigest() = default;
  explicit RunningDigest(const Digest& so_far) : digest_(so_far) {}
  void Add(const void* data, size_t bytes);
  const Digest& digest() const { return digest_; }
  std::string Hex() const;

 private:
  Digest digest_{};
};

}  // namespace trunkline::trunk
