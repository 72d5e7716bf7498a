#pragma once

// A weight matrix [N outputs, K inputs], packed once so that SIMD lanes are
// outputs: panels of kPanel outputs, each panel holding K groups of kPanel
// consecutive values (N-interleaved). Outputs beyond N in the last panel are
// zero. Element type as stored (F32, F16, BF16); kernels widen in registers.
// Inside a group F32 and F16 values stand in output order; BF16 values stand in
// pairs (output i, output i + 16), i = 0..15, so that one load gives two
// vectors of consecutive outputs by a shift and a mask, whatever the vector
// width. Source: architecture.md, Numerics classes.
//
// For class bf16dot a panel holds input_pairs() groups of kPanel pairs (input
// 2j, input 2j + 1), in output order: the lanes of the dot instruction. The
// second half of the last pair is zero when K is odd.

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/aligned_buffer.h"
#include "common/tensor_view.h"
#include "common/thread_pool.h"
#include "kernels/numerics.h"

namespace trunkline::kernels {

class PackedMatrix {
 public:
  static constexpr int64_t kPanel = 32;

  PackedMatrix() = default;
  // weight: [N, K], row-major. INVALID_ARGUMENT (with the tensor's name and
  // shape) unless 2-D. numerics: the class that products with it are in;
  // FAILED_PRECONDITION when the machine does not have it, or when the weight
  // is not BF16 and has to be.
  static absl::StatusOr<PackedMatrix> Pack(
      const TensorView& weight, ThreadPool& pool,
      Numerics numerics = Numerics::kPortable);

  int64_t n() const { return n_; }
  int64_t k() const { return k_; }
  DType dtype() const { return dtype_; }
  Numerics numerics() const { return numerics_; }
  int64_t input_pairs() const { return (k_ + 1) / 2; }
  int64_t panels() const { return (n_ + kPanel - 1) / kPanel; }
  // Panel p starts here: k() x kPanel elements of dtype(), k() rounded up to
  // even for class bf16dot.
  const std::byte* panel(int64_t p) const {
    return data_.data() + p * panel_bytes();
  }
  int64_t panel_bytes() const { return PanelBytes(k_, dtype_, numerics_); }
  int64_t bytes() const { return static_cast<int64_t>(data_.size()); }
  bool empty() const { return n_ == 0; }
  // bytes() of a matrix before it is packed.
  static int64_t BytesFor(int64_t n, int64_t k, DType dtype,
                          Numerics numerics) {
    return (n + kPanel - 1) / kPanel * PanelBytes(k, dtype, numerics);
  }
  // The inverse of Pack for rows first .. first+count-1: as they were stored,
  // row-major without gaps, bit for bit. out: count * k() elements.
  void Unpack(int64_t first, int64_t count, std::byte* out) const;
  float At(int64_t output,
           int64_t input) const;  // for tests and references; slow

 private:
  static int64_t PanelBytes(int64_t k, DType dtype, Numerics numerics) {
    const int64_t inputs = numerics == Numerics::kBf16Dot ? (k + 1) / 2 * 2 : k;
    return inputs * kPanel * DTypeBytes(dtype);
  }
  // Where an element stands in its panel, in elements.
  int64_t PlaceInPanel(int64_t output, int64_t input) const;

  int64_t n_ = 0;
  int64_t k_ = 0;
  DType dtype_ = DType::kF32;
  Numerics numerics_ = Numerics::kPortable;
  AlignedBuffer data_;
};

}  // namespace trunkline::kernels
