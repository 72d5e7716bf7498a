#pragma once

// What the two frame fuzz targets share: the input on the boundary that a frame
// has, and with a checksum that is right, so that the fuzzer gets past it.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "dispatch/expert_frame.h"

namespace trunkline::dispatch {

class FuzzFrame {
 public:
  FuzzFrame(const uint8_t* data, size_t size)
      : storage_(size / sizeof(uint64_t) + 1), size_(size) {
    if (size > 0) std::memcpy(storage_.data(), data, size);
  }
  std::span<std::byte> bytes() {
    return {reinterpret_cast<std::byte*>(storage_.data()), size_};
  }
  void MakeChecksumRight() {
    if (size_ >= kFrameHeaderBytes) SealFrame(bytes());
  }

 private:
  std::vector<uint64_t> storage_;
  size_t size_;
};

inline void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}

// Reads every byte of the rows, so that a span which is too long is seen.
inline unsigned ReadAll(std::span<const std::byte> rows) {
  unsigned sum = 0;
  for (std::byte b : rows) sum += static_cast<unsigned>(b);
  return sum;
}

}  // namespace trunkline::dispatch
