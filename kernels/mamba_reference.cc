#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/mamba.h"
#include "kernels/rounding.h"
#include "kernels/scalar_math.h"

namespace trunkline::kernels::reference {
namespace {

// Element i of a state in the activation type.
float ReadState(const std::byte* state, Activation type, int64_t i) {
  if (type == Activation::kBf16) {
    uint16_t bits;
    std::memcpy(&bits, state + i * 2, sizeof(bits));
    return Bf16ToFloat(bits);
  }
  float value;
  std::memcpy(&value, state + i * 4, sizeof(value));
  return value;
}

void WriteState(std::byte* state, Activation type, int64_t i, float value) {
  if (type == Activation::kBf16) {
    const uint16_t bits = FloatToBf16(value);
    std::memcpy(state + i * 2, &bits, sizeof(bits));
  } else {
    std::memcpy(state + i * 4, &value, sizeof(value));
  }
}

}  // namespace

void CausalConv(const CausalConvArgs& args) {
  const int64_t before = args.kernel - 1;
  for (const StateSegment& segment : args.segments) {
    for (int64_t ch = 0; ch < args.channels; ++ch) {
      std::vector<float> window(static_cast<size_t>(args.kernel));
      for (int64_t j = 0; j < before; ++j) {
        window[static_cast<size_t>(j)] =
            ReadState(segment.state, args.out, j * args.channels + ch);
      }
      for (int64_t t = segment.row_begin;
           t < segment.row_begin + segment.row_count; ++t) {
        window.back() = args.x[t * args.x_stride + ch];
        float c = args.bias != nullptr ? args.bias[ch] : 0.0f;
        for (int64_t j = 0; j < args.kernel; ++j) {
          c = std::fma(args.weight[j * args.channels + ch],
                       window[static_cast<size_t>(j)], c);
        }
        args.y[t * args.y_stride + ch] = RoundTo(args.out, Silu(c));
        for (int64_t j = 0; j < before; ++j) {
          window[static_cast<size_t>(j)] = window[static_cast<size_t>(j) + 1];
        }
      }
      for (int64_t j = 0; j < before; ++j) {
        WriteState(segment.state, args.out, j * args.channels + ch,
                   window[static_cast<size_t>(j)]);
      }
    }
  }
}

void SelectiveScan(const SelectiveScanArgs& args) {
  const int64_t inner = args.heads * args.head_dim;
  for (const StateSegment& segment : args.segments) {
    auto* state = reinterpret_cast<float*>(segment.state);
    for (int64_t t = segment.row_begin;
         t < segment.row_begin + segment.row_count; ++t) {
      const float* row = args.x + t * args.x_stride;
      for (int64_t h = 0; h < args.heads; ++h) {
        const int64_t group = h / (args.heads / args.groups);
        const float* b = row + inner + group * args.state_size;
        const float* c = b + args.groups * args.state_size;
        float dt = Softplus(args.dt[t * args.dt_stride + h] + args.dt_bias[h]);
        if (dt < args.dt_min) dt = args.dt_min;
        if (dt > args.dt_max) dt = args.dt_max;
        const float decay = Exp(dt * args.a[h]);
        for (int64_t p = 0; p < args.head_dim; ++p) {
          const float x = row[h * args.head_dim + p];
          float y = 0.0f;
          for (int64_t n = 0; n < args.state_size; ++n) {
            float& s = state[(h * args.state_size + n) * args.head_dim + p];
            s = std::fma(s, decay, (b[n] * dt) * x);
            y = std::fma(s, c[n], y);
          }
          y = std::fma(x, args.d[h], y);
          args.y[t * args.y_stride + h * args.head_dim + p] =
              RoundTo(args.out, y);
        }
      }
    }
  }
}

}  // namespace trunkline::kernels::reference
