#pragma once

// One rounding to the activation type, as every kernel ends (contract 7).

#include "common/bfloat16.h"
#include "kernels/kernel_context.h"

namespace trunkline::kernels {

inline float RoundTo(Activation out, float value) {
  return out == Activation::kBf16 ? RoundToBf16(value) : value;
}

}  // namespace trunkline::kernels
