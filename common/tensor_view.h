#pragma once

// A named, typed, row-major view of somebody else's bytes (usually a mapped
// checkpoint file). The owner of the bytes outlives the view. Element 0 need
// not be aligned to its type: safetensors promises no alignment, so readers go
// through memcpy or unaligned loads.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/dtype.h"

namespace trunkline {

struct TensorView {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // outermost first
  const std::byte* data = nullptr;

  int64_t elements() const {
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    return n;
  }
  int64_t bytes() const { return elements() * DTypeBytes(dtype); }
};

std::string ShapeString(const std::vector<int64_t>& shape);  // "[512, 64]"

}  // namespace trunkline
