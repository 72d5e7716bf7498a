#include <vector>

#include "kernels/matmul.h"
#include "kernels/mlp.h"
#include "kernels/row_ops.h"

namespace trunkline::kernels::reference {

void GroupedMlp(const GroupedMlpArgs& args) {
  for (const MlpGroup& group : args.groups) {
    const MlpWeights& weights = *group.weights;
    const int64_t inner = weights.up.n();
    for (int64_t row = group.row_begin; row < group.row_begin + group.row_count;
         ++row) {
      const int64_t source = args.row_index != nullptr
                                 ? static_cast<int64_t>(args.row_index[row])
                                 : row;
      std::vector<float> hidden(static_cast<size_t>(inner));
      MatMulArgs up;
      up.x = args.x + source * args.x_stride;
      up.x_stride = args.x_stride;
      up.rows = 1;
      up.w = &weights.up;
      up.y = hidden.data();
      up.y_stride = inner;
      up.out = args.out;
      MatMul(up);
      Relu2(hidden.data(), inner, 1, inner, args.out);
      MatMulArgs down = up;
      down.x = hidden.data();
      down.x_stride = inner;
      down.w = &weights.down;
      down.y = args.y + row * args.y_stride;
      down.y_stride = args.y_stride;
      MatMul(down);
    }
  }
}

}  // namespace trunkline::kernels::reference
