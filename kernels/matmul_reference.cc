#include <cmath>

#include "kernels/matmul.h"
#include "kernels/rounding.h"

namespace trunkline::kernels::reference {

void MatMul(const MatMulArgs& args) {
  for (int64_t m = 0; m < args.rows; ++m) {
    const int64_t row =
        args.row_index != nullptr ? static_cast<int64_t>(args.row_index[m]) : m;
    const float* x = args.x + row * args.x_stride;
    for (int64_t n = 0; n < args.w->n(); ++n) {
      float acc = 0.0f;
      for (int64_t k = 0; k < args.w->k(); ++k) {
        acc = std::fma(x[k], args.w->At(n, k), acc);
      }
      args.y[m * args.y_stride + n] = RoundTo(args.out, acc);
    }
  }
}

}  // namespace trunkline::kernels::reference
