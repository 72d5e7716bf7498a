#pragma once

// y[m, n] = round(sum over k of x[m, k] * w[n, k]): contract 1 of README.md.

#include <cstdint>

#include "kernels/kernel_context.h"
#include "kernels/packed_matrix.h"

namespace trunkline::kernels {

struct MatMulArgs {
  const float* x = nullptr;  // [rows, w->k()], read
  int64_t x_stride = 0;      // elements between rows
  const uint32_t* row_index =
      nullptr;  // null: row m of x; else row row_index[m] of x
  int64_t rows = 0;
  const PackedMatrix* w = nullptr;  // [N, K]
  float* y = nullptr;  // [rows, w->n()], written; must not overlap x
  int64_t y_stride = 0;
  Activation out = Activation::kF32;
};

void MatMul(const KernelContext& context, const MatMulArgs& args);

namespace reference {
void MatMul(const MatMulArgs& args);
}

}  // namespace trunkline::kernels
