#include "kernels/mlp.h"

#include "common/check.h"
#include "kernels/product_runner.h"

namespace trunkline::kernels {
namespace {

int64_t CheckedRows(const GroupedMlpArgs& args) {
  int64_t rows = 0;
  for (const MlpGroup& group : args.groups) {
    TL_CHECK(group.weights != nullptr);
    TL_CHECK_EQ(group.row_begin, rows);
    TL_CHECK_GE(group.row_count, 0);
    TL_CHECK_EQ(group.weights->up.n(), group.weights->down.k());
    TL_CHECK_EQ(group.weights->up.k(), group.weights->down.n());
    TL_CHECK_GE(args.x_stride, group.weights->up.k());
    TL_CHECK_GE(args.y_stride, group.weights->down.n());
    rows += group.row_count;
  }
  return rows;
}

}  // namespace

float* MlpScratch::Reserve(int64_t floats) {
  const size_t bytes = static_cast<size_t>(floats) * sizeof(float);
  if (bytes > buffer_.size()) buffer_ = AlignedBuffer(bytes);
  return buffer_.as<float>();
}

void GroupedMlp(const KernelContext& context, const GroupedMlpArgs& args,
                MlpScratch* scratch) {
  TL_CHECK(context.pool != nullptr && scratch != nullptr);
  const int64_t rows = CheckedRows(args);
  if (rows == 0) return;
  TL_CHECK(args.x != nullptr && args.y != nullptr);
  int64_t hidden_floats = 0;
  for (const MlpGroup& group : args.groups) {
    hidden_floats += group.row_count * group.weights->up.n();
  }
  float* hidden = scratch->Reserve(hidden_floats);

  static thread_local ProductRunner runner;
  static thread_local std::vector<Product> products;
  // All groups' first products, then all groups' second ones: two joins for a
  // whole layer, however many experts it activates.
  products.clear();
  float* group_hidden = hidden;
  for (const MlpGroup& group : args.groups) {
    const MlpWeights& weights = *group.weights;
    Product up;
    up.source.rows = group.row_count;
    up.source.x_stride = args.x_stride;
    if (args.row_index != nullptr) {
      up.source.x = args.x;
      up.source.row_index = args.row_index + group.row_begin;
    } else {
      up.source.x = args.x + group.row_begin * args.x_stride;
    }
    up.w = &weights.up;
    up.output = {group_hidden, weights.up.n(), args.out, true};
    products.push_back(up);
    group_hidden += group.row_count * weights.up.n();
  }
  runner.Run(*context.pool, products);

  products.clear();
  group_hidden = hidden;
  for (const MlpGroup& group : args.groups) {
    const MlpWeights& weights = *group.weights;
    Product down;
    down.source = {group_hidden, weights.up.n(), nullptr, group.row_count};
    down.w = &weights.down;
    down.output = {args.y + group.row_begin * args.y_stride, args.y_stride,
                   args.out, false};
    products.push_back(down);
    group_hidden += group.row_count * weights.up.n();
  }
  runner.Run(*context.pool, products);
}

}  // namespace trunkline::kernels
