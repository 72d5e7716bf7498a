#include "kernels/matmul.h"

#include "common/check.h"
#include "kernels/product_runner.h"

namespace trunkline::kernels {

void MatMul(const KernelContext& context, const MatMulArgs& args) {
  TL_CHECK(context.pool != nullptr && args.w != nullptr);
  TL_CHECK_GE(args.rows, 0);
  if (args.rows == 0 || args.w->n() == 0) return;
  TL_CHECK(args.x != nullptr && args.y != nullptr);
  TL_CHECK_GE(args.x_stride, args.w->k());
  TL_CHECK_GE(args.y_stride, args.w->n());
  Product product;
  product.source = {args.x, args.x_stride, args.row_index, args.rows};
  product.w = args.w;
  product.output = {args.y, args.y_stride, args.out, false};
  static thread_local ProductRunner runner;
  runner.Run(*context.pool, {&product, 1});
}

}  // namespace trunkline::kernels
