#include <cmath>

#include "kernels/bf16_dot.h"
#include "kernels/matmul.h"
#include "kernels/rounding.h"

namespace trunkline::kernels::reference {

namespace {

// Contract 1: k after k.
float ProductOfRow(const float* x, const PackedMatrix& w, int64_t n) {
  float acc = 0.0f;
  for (int64_t k = 0; k < w.k(); ++k) acc = std::fma(x[k], w.At(n, k), acc);
  return acc;
}

// Contract 1 of class bf16dot: pair after pair, the last one filled with zeros.
float PairProductOfRow(const float* x, const PackedMatrix& w, int64_t n) {
  float acc = 0.0f;
  for (int64_t k = 0; k < w.k(); k += 2) {
    const bool whole = k + 1 < w.k();
    acc =
        Bf16Dot(acc, Bf16DotInput(x[k]), whole ? Bf16DotInput(x[k + 1]) : 0.0f,
                w.At(n, k), whole ? w.At(n, k + 1) : 0.0f);
  }
  return acc;
}

}  // namespace

void MatMul(const MatMulArgs& args) {
  for (int64_t m = 0; m < args.rows; ++m) {
    const int64_t row =
        args.row_index != nullptr ? static_cast<int64_t>(args.row_index[m]) : m;
    const float* x = args.x + row * args.x_stride;
    for (int64_t n = 0; n < args.w->n(); ++n) {
      const float acc = args.w->numerics() == Numerics::kBf16Dot
                            ? PairProductOfRow(x, *args.w, n)
                            : ProductOfRow(x, *args.w, n);
      args.y[m * args.y_stride + n] = RoundTo(args.out, acc);
    }
  }
}

}  // namespace trunkline::kernels::reference
