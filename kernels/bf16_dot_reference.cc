#include <cfloat>
#include <cmath>

#include "common/bfloat16.h"
#include "kernels/bf16_dot.h"

namespace trunkline::kernels::reference {
namespace {

float WithoutSubnormal(float value) {
  return std::fabs(value) < FLT_MIN ? std::copysign(0.0f, value) : value;
}

// fma whose result is zero when it is tiny after rounding as if exponents had
// no end. Only the neighbourhood of the smallest normal number asks for care:
// there the sum is rounded once more, scaled up to where fp32 is not subnormal.
float FmaWithoutSubnormals(float a, float b, float c) {
  const float sum = std::fma(a, b, c);
  if (!(std::fabs(sum) <= FLT_MIN)) return sum;
  constexpr float kUp = 0x1p64f;
  // The factors' product is of the size of c or smaller than it can show, so
  // scaling the smaller of them overflows nothing.
  const float scaled = std::fabs(a) < std::fabs(b)
                           ? std::fma(a * kUp, b, c * kUp)
                           : std::fma(a, b * kUp, c * kUp);
  return std::fabs(scaled) < FLT_MIN * kUp ? std::copysign(0.0f, sum) : sum;
}

}  // namespace

float Bf16Dot(float acc, float x0, float x1, float w0, float w1) {
  acc = FmaWithoutSubnormals(WithoutSubnormal(x1), WithoutSubnormal(w1),
                             WithoutSubnormal(acc));
  return FmaWithoutSubnormals(WithoutSubnormal(x0), WithoutSubnormal(w0), acc);
}

float Bf16DotInput(float value) { return RoundToBf16(WithoutSubnormal(value)); }

}  // namespace trunkline::kernels::reference
