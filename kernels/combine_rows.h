#pragma once

// acc[row] += gate * expert output, in ascending expert id: the sum of a moe
// layer (nemotron-h.md 3.10, architecture.md "Wire format"). Per contribution c
// = f32(gate * f32(value)), acc = f32(acc + c): two roundings, never fused, so
// that a gated f32 row and an ungated bf16 row give the same bits. After the
// last contribution the row is rounded once to the activation type. A row with
// no contribution is zero.

#include <cstdint>
#include <span>

#include "common/dtype.h"
#include "kernels/kernel_context.h"

namespace trunkline::kernels {

struct Contribution {
  const std::byte* values = nullptr;  // width elements; 4-byte aligned
  float gate = 0.0f;                  // used when the values are ungated
  bool gated = false;                 // true: values are c already (F32)
  DType dtype = DType::kF32;          // kF32 or kBF16
};

struct CombineArgs {
  // Row r takes contributions[offsets[r]] .. contributions[offsets[r+1]-1] in
  // this order, which the caller made ascending in expert id.
  std::span<const uint32_t> offsets;  // rows + 1
  std::span<const Contribution> contributions;
  int64_t width = 0;
  float* y = nullptr;  // [rows, width], written
  int64_t y_stride = 0;
  Activation out = Activation::kF32;
};
void CombineRows(const KernelContext& context, const CombineArgs& args);

// out = gate * f32(row), the worker's side of a gated answer; width elements.
void GateRow(const float* row, float gate, int64_t width, float* out);
// bf16 bits of a row whose values are exactly representable.
void NarrowRow(const float* row, int64_t width, uint16_t* out);
void WidenRow(const uint16_t* row, int64_t width, float* out);

namespace reference {
void CombineRows(const CombineArgs& args);
}

}  // namespace trunkline::kernels
