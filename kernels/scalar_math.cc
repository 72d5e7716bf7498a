#include "kernels/scalar_math.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

// kernels/simd_math-inl.h is the twin of this file: the same operations in the
// same order, lane by lane. A change here is a change there and a new numerics
// class everywhere.

namespace trunkline::kernels {
namespace {

// One bit pattern for every NaN: what a NaN operand becomes differs between
// instruction sets.
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

constexpr float kLog2E = 1.44269504f;
// ln 2 in two parts; the first has 12 significant bits, so that its product
// with an exponent is exact.
constexpr float kLn2High = 0x1.62ep-1f;
constexpr float kLn2Low = 0x1.0bfbe8p-15f;
// Adding 1.5 * 2^23 leaves the nearest integer in the low bits of the sum.
constexpr float kRoundingShift = 12582912.0f;
constexpr int32_t kRoundingShiftBits = 0x4b400000;
// Bits of sqrt(1/2): mantissas are taken from [sqrt(1/2), sqrt(2)).
constexpr uint32_t kSqrtHalfBits = 0x3f3504f3u;

float PowerOfTwo(int32_t exponent) {
  return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
}

// log(2^k * (1 + f)) + c for 1 + f in [sqrt(1/2), sqrt(2)): the series of
// 2 artanh(f / (2 + f)), arranged so that f itself enters last and exact.
float LogOfParts(float k, float f, float c) {
  const float s = f / (2.0f + f);
  const float z = s * s;
  float r = std::fma(z, 0x1.c71c72p-3f, 0x1.24924ap-2f);  // 2/9, 2/7
  r = std::fma(z, r, 0x1.99999ap-2f);                     // 2/5
  r = std::fma(z, r, 0x1.555556p-1f);                     // 2/3
  r = r * z;
  const float half_square = 0.5f * f * f;
  const float t =
      std::fma(s, half_square + r, std::fma(k, kLn2Low, c)) - half_square;
  return std::fma(k, kLn2High, t + f);
}

}  // namespace

float Exp(float x) {
  if (x != x) return kNan;
  x = x < -104.0f ? -104.0f : x;
  x = x > 89.0f ? 89.0f : x;
  const float shifted = std::fma(x, kLog2E, kRoundingShift);
  const float n = shifted - kRoundingShift;
  const int32_t exponent = std::bit_cast<int32_t>(shifted) - kRoundingShiftBits;
  // x - n ln 2 as r + r_low: the first step is exact.
  const float r_high = std::fma(n, -kLn2High, x);
  const float r = std::fma(n, -kLn2Low, r_high);
  const float r_low = std::fma(n, -kLn2Low, r_high - r);
  // exp(r) = 1 + r + r^2 q(r); q is the polynomial of least relative error
  // (3e-9) on |r| <= ln(2)/2.
  float q = std::fma(r, 0x1.6a23dp-10f, 0x1.123a2p-7f);
  q = std::fma(r, q, 0x1.5558f2p-5f);
  q = std::fma(r, q, 0x1.555492p-3f);
  q = std::fma(r, q, 0x1.fffffcp-2f);
  // 1 + r as head + lost, so that only the last addition rounds at the size of
  // the result.
  const float head = 1.0f + r;
  const float lost = (1.0f - head) + r;
  const float p = head + std::fma(r * r, q, lost + r_low);
  // In two steps, so that neither factor leaves the normal range and a
  // subnormal result is rounded once.
  const int32_t half = exponent >> 1;
  return p * PowerOfTwo(half) * PowerOfTwo(exponent - half);
}

float Log(float x) {
  if (!(x >= 0.0f)) return kNan;
  if (x == 0.0f) return -kInfinity;
  if (x == kInfinity) return kInfinity;
  const bool subnormal = x < 0x1p-126f;
  const float scaled = subnormal ? x * 0x1p25f : x;
  const uint32_t bits =
      std::bit_cast<uint32_t>(scaled) + (0x3f800000u - kSqrtHalfBits);
  const int32_t k = static_cast<int32_t>(bits >> 23) - 127;
  const float m = std::bit_cast<float>((bits & 0x007fffffu) + kSqrtHalfBits);
  return LogOfParts(static_cast<float>(subnormal ? k - 25 : k), m - 1.0f, 0.0f);
}

float Log1p(float x) {
  if (!(x >= 0.0f)) return kNan;
  if (x == kInfinity) return kInfinity;
  const float u = 1.0f + x;
  const uint32_t bits =
      std::bit_cast<uint32_t>(u) + (0x3f800000u - kSqrtHalfBits);
  const int32_t k = static_cast<int32_t>(bits >> 23) - 127;
  if (k == 0) return LogOfParts(0.0f, x, 0.0f);
  const float m = std::bit_cast<float>((bits & 0x007fffffu) + kSqrtHalfBits);
  // What 1 + x lost in rounding, relative to u.
  const float lost = (x >= 1.0f ? 1.0f - (u - x) : x - (u - 1.0f)) / u;
  return LogOfParts(static_cast<float>(k), m - 1.0f, lost);
}

float Softplus(float x) { return x > 20.0f ? x : Log1p(Exp(x)); }

float SigmoidScalar(float x) {
  if (x != x) return kNan;
  return 1.0f / (1.0f + Exp(-x));
}

float Silu(float x) {
  if (x != x) return kNan;
  const float denominator = 1.0f + Exp(-x);
  // -inf / inf: the limit is -0.
  return x == -kInfinity ? -0.0f : x / denominator;
}

}  // namespace trunkline::kernels
