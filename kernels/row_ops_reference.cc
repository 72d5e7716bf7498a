#include <cmath>
#include <vector>

#include "kernels/reduction_reference.h"
#include "kernels/rounding.h"
#include "kernels/row_ops.h"
#include "kernels/scalar_math.h"

namespace trunkline::kernels::reference {

void RmsNorm(const RmsNormArgs& args) {
  for (int64_t m = 0; m < args.rows; ++m) {
    const float* x = args.x + m * args.x_stride;
    float* y = args.y + m * args.y_stride;
    const float sum =
        SumInOrder(args.width, [x](int64_t i) { return x[i] * x[i]; });
    const float mean = sum / static_cast<float>(args.width);
    const float r = 1.0f / std::sqrt(mean + args.eps);
    for (int64_t i = 0; i < args.width; ++i) {
      y[i] = RoundTo(args.out, args.weight[i] * (x[i] * r));
    }
  }
}

void GatedRmsNorm(const GatedRmsNormArgs& args) {
  std::vector<float> t(static_cast<size_t>(args.group_size));
  for (int64_t m = 0; m < args.rows; ++m) {
    for (int64_t begin = 0; begin < args.width; begin += args.group_size) {
      const float* x = args.x + m * args.x_stride + begin;
      const float* z = args.z + m * args.z_stride + begin;
      float* y = args.y + m * args.y_stride + begin;
      for (int64_t i = 0; i < args.group_size; ++i) t[i] = x[i] * Silu(z[i]);
      const float sum =
          SumInOrder(args.group_size, [&](int64_t i) { return t[i] * t[i]; });
      const float mean = sum / static_cast<float>(args.group_size);
      const float r = 1.0f / std::sqrt(mean + args.eps);
      for (int64_t i = 0; i < args.group_size; ++i) {
        y[i] = RoundTo(args.out, t[i] * r * args.weight[begin + i]);
      }
    }
  }
}

void AddRows(float* x, int64_t x_stride, const float* y, int64_t y_stride,
             int64_t rows, int64_t width, Activation out) {
  for (int64_t m = 0; m < rows; ++m) {
    for (int64_t i = 0; i < width; ++i) {
      float& value = x[m * x_stride + i];
      value = RoundTo(out, value + y[m * y_stride + i]);
    }
  }
}

void Relu2(float* x, int64_t x_stride, int64_t rows, int64_t width,
           Activation out) {
  for (int64_t m = 0; m < rows; ++m) {
    for (int64_t i = 0; i < width; ++i) {
      float& value = x[m * x_stride + i];
      const float relu = value < 0.0f ? 0.0f : value;
      value = RoundTo(out, relu * relu);
    }
  }
}

void Sigmoid(float* x, int64_t x_stride, int64_t rows, int64_t width) {
  for (int64_t m = 0; m < rows; ++m) {
    for (int64_t i = 0; i < width; ++i) {
      float& value = x[m * x_stride + i];
      value = SigmoidScalar(value);
    }
  }
}

}  // namespace trunkline::kernels::reference
