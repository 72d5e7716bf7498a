#pragma once

// A weight matrix [N outputs, K inputs], packed once so that SIMD lanes are
// outputs: panels of kPanel outputs, each panel holding K groups of kPanel
// consecutive values (N-interleaved). Outputs beyond N in the last panel are
// zero. Element type as stored (F32, F16, BF16); kernels widen in registers.
// Inside a group F32 and F16 values stand in output order; BF16 values stand in
// pairs (output i, output i + 16), i = 0..15, so that one load gives two
// vectors of consecutive outputs by a shift and a mask, whatever the vector
// width. Source: architecture.md, Numerics classes.

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/aligned_buffer.h"
#include "common/tensor_view.h"
#include "common/thread_pool.h"

namespace trunkline::kernels {

class PackedMatrix {
 public:
  static constexpr int64_t kPanel = 32;

  PackedMatrix() = default;
  // weight: [N, K], row-major. INVALID_ARGUMENT (with the tensor's name and
  // shape) unless 2-D.
  static absl::StatusOr<PackedMatrix> Pack(const TensorView& weight,
                                           ThreadPool& pool);

  int64_t n() const { return n_; }
  int64_t k() const { return k_; }
  DType dtype() const { return dtype_; }
  int64_t panels() const { return (n_ + kPanel - 1) / kPanel; }
  // Panel p starts here: k() x kPanel elements of dtype().
  const std::byte* panel(int64_t p) const {
    return data_.data() + p * panel_bytes();
  }
  int64_t panel_bytes() const { return k_ * kPanel * DTypeBytes(dtype_); }
  int64_t bytes() const { return static_cast<int64_t>(data_.size()); }
  bool empty() const { return n_ == 0; }
  // The inverse of Pack for rows first .. first+count-1: as they were stored,
  // row-major without gaps, bit for bit. out: count * k() elements.
  void Unpack(int64_t first, int64_t count, std::byte* out) const;
  float At(int64_t output,
           int64_t input) const;  // for tests and references; slow

 private:
  int64_t n_ = 0;
  int64_t k_ = 0;
  DType dtype_ = DType::kF32;
  AlignedBuffer data_;
};

}  // namespace trunkline::kernels
