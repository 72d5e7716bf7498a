#pragma once

// Memory of the calling thread that grows to the largest request and stays, so
// that a step allocates nothing once every shape has been seen.

#include <cstddef>
#include <cstdint>

#include "common/aligned_buffer.h"

namespace trunkline::kernels {

class ThreadScratch {
 public:
  // Cache line aligned; contents are undefined.
  float* Floats(int64_t count) {
    const size_t bytes = static_cast<size_t>(count) * sizeof(float);
    if (bytes > buffer_.size()) buffer_ = AlignedBuffer(bytes);
    return buffer_.as<float>();
  }

 private:
  AlignedBuffer buffer_;
};

}  // namespace trunkline::kernels
