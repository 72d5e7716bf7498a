#pragma once

// The functions of scalar_math.h over whole arrays, on the active target, with
// the same bits.

#include <cstdint>

namespace trunkline::kernels {

enum class MathFunction : uint8_t {
  kExp,
  kLog,
  kLog1p,
  kSoftplus,
  kSigmoid,
  kSilu
};

// y[i] = function(x[i]); y may be x.
void ApplyMath(MathFunction function, const float* x, int64_t count, float* y);

}  // namespace trunkline::kernels
