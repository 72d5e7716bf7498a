#pragma once

// Row-wise operations around the products. All rows are fp32 arrays (README.md,
// contract 7).

#include <cstdint>

#include "common/tensor_view.h"
#include "kernels/kernel_context.h"

namespace trunkline::kernels {

// y = round(w * (x * 1/sqrt(mean(x^2) + eps))), one rounding
// (nemotron-h.md 3.2). mean by contract 2 over the fp32 squares, divided by
// width.
struct RmsNormArgs {
  const float* x = nullptr;  // [rows, width], read
  int64_t x_stride = 0;
  int64_t rows = 0;
  int64_t width = 0;
  const float* weight = nullptr;  // [width]
  float eps = 1e-5f;
  float* y = nullptr;  // [rows, width], written; may be x
  int64_t y_stride = 0;
  Activation out = Activation::kF32;
};
void RmsNorm(const KernelContext& context, const RmsNormArgs& args);

// t = x * silu(z); per contiguous group of group_size channels r =
// 1/sqrt(mean(t^2) + eps); y = round(t * r * w) (nemotron-h.md 3.6, form (1):
// norm_before_gate = false, one rounding).
struct GatedRmsNormArgs {
  const float* x = nullptr;  // [rows, width], the scan's output
  int64_t x_stride = 0;
  const float* z = nullptr;  // [rows, width], the gate
  int64_t z_stride = 0;
  int64_t rows = 0;
  int64_t width = 0;
  int64_t group_size = 0;         // divides width
  const float* weight = nullptr;  // [width]
  float eps = 1e-5f;
  float* y = nullptr;  // [rows, width], written; may be x
  int64_t y_stride = 0;
  Activation out = Activation::kF32;
};
void GatedRmsNorm(const KernelContext& context, const GatedRmsNormArgs& args);

// x = round(x + y), rows of `width`.
void AddRows(const KernelContext& context, float* x, int64_t x_stride,
             const float* y, int64_t y_stride, int64_t rows, int64_t width,
             Activation out);

// out[i] = widened row ids[i] of table [vocab, width]. ids were validated by
// the caller.
void EmbedRows(const KernelContext& context, const TensorView& table,
               const int32_t* ids, int64_t rows, float* out,
               int64_t out_stride);

// x = round(relu(x)^2), in place.
void Relu2(const KernelContext& context, float* x, int64_t x_stride,
           int64_t rows, int64_t width, Activation out);

// x = sigmoid(x), in place, fp32.
void Sigmoid(const KernelContext& context, float* x, int64_t x_stride,
             int64_t rows, int64_t width);

namespace reference {
void RmsNorm(const RmsNormArgs& args);
void GatedRmsNorm(const GatedRmsNormArgs& args);
void AddRows(float* x, int64_t x_stride, const float* y, int64_t y_stride,
             int64_t rows, int64_t width, Activation out);
void Relu2(float* x, int64_t x_stride, int64_t rows, int64_t width,
           Activation out);
void Sigmoid(float* x, int64_t x_stride, int64_t rows, int64_t width);
}  // namespace reference

}  // namespace trunkline::kernels
