#pragma once

// The sequential half of a Mamba2 mixer: depthwise causal convolution with
// SiLU, and the selective scan. Both run over rows of several sequences at
// once; a segment is one sequence's consecutive rows with that sequence's
// state, which is updated in place. A decode row is a segment of one row: the
// same code, hence the same bits (contract 4).

#include <cstdint>
#include <span>

#include "kernels/kernel_context.h"

namespace trunkline::kernels {

struct StateSegment {
  int64_t row_begin = 0;
  int64_t row_count = 0;
  std::byte* state =
      nullptr;  // this sequence's state of this layer, read and written
};

// c[t,ch] = bias[ch] + sum_{j=0..K-1} w[j][ch] * x[t-K+1+j, ch]: accumulator
// starts at the bias and takes j = 0 (oldest) .. K-1 by fma; rows before the
// sequence come from the state; y = round(silu(c)). State: the last K-1 input
// rows, oldest first, [K-1, channels] in the activation type (zero at the
// start).
struct CausalConvArgs {
  const float* x = nullptr;  // [rows, channels], pre-convolution x|B|C
  int64_t x_stride = 0;
  int64_t channels = 0;
  int64_t kernel = 0;             // K >= 2
  const float* weight = nullptr;  // [K, channels]: w[j][ch], tap-major (the
                                  // checkpoint's [channels,1,K] transposed)
  const float* bias = nullptr;    // [channels], or null
  std::span<const StateSegment> segments;
  float* y = nullptr;  // [rows, channels], written; must not overlap x
  int64_t y_stride = 0;
  Activation out = Activation::kF32;  // also the state's element type
};
int64_t ConvStateBytes(int64_t channels, int64_t kernel, Activation type);
void CausalConv(const KernelContext& context, const CausalConvArgs& args);

// Per head h (group g = h / (heads / groups)) and token, README.md contract 4,
// with dt = softplus(dt_raw + dt_bias), clamped to [dt_min, dt_max]; y rounded
// once. State: fp32 [heads, state_size, head_dim] (state-major, so that lanes
// are head_dim), zero at the start.
struct SelectiveScanArgs {
  const float* x = nullptr;  // [rows, heads*head_dim + 2*groups*state_size]:
                             // x|B|C after the convolution
  int64_t x_stride = 0;
  const float* dt = nullptr;  // [rows, heads], raw
  int64_t dt_stride = 0;
  const float* dt_bias = nullptr;  // [heads]
  const float* a = nullptr;        // [heads], -exp(A_log)
  const float* d = nullptr;        // [heads]
  float dt_min = 0.0f;
  float dt_max = 3.4028235e38f;
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t groups = 0;  // divides heads
  int64_t state_size = 0;
  std::span<const StateSegment> segments;
  float* y = nullptr;  // [rows, heads*head_dim], written
  int64_t y_stride = 0;
  Activation out = Activation::kF32;
};
int64_t ScanStateBytes(int64_t heads, int64_t head_dim, int64_t state_size);
void SelectiveScan(const KernelContext& context, const SelectiveScanArgs& args);

// a[h] = -exp(a_log[h]) by the exp of scalar_math.h.
void NegativeExp(const float* a_log, int64_t count, float* a);

namespace reference {
void CausalConv(const CausalConvArgs& args);
void SelectiveScan(const SelectiveScanArgs& args);
}  // namespace reference

}  // namespace trunkline::kernels
