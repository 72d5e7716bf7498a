#pragma once

// IEEE binary16 as 16 raw bits: widening is exact, narrowing rounds to nearest
// even, overflows to infinity and keeps NaN a NaN.

#include <bit>
#include <cstdint>

namespace trunkline {

using HalfBits = uint16_t;

inline float HalfToFloat(HalfBits bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0) {
    // Zero or subnormal: mantissa * 2^-24, exact in fp32.
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  if (exponent == 31) {
    // Infinity, or a NaN made quiet as the conversion instructions do.
    const uint32_t quiet = mantissa != 0 ? 0x00400000u : 0u;
    return std::bit_cast<float>(sign | 0x7f800000u | quiet | (mantissa << 13));
  }
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) |
                              (mantissa << 13));
}

inline HalfBits FloatToHalf(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {  // NaN
    return static_cast<HalfBits>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  }
  // 65520 lies halfway between the largest half and the next step.
  if (magnitude >= 0x477ff000u) return static_cast<HalfBits>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {
    // Below the smallest normal half: a step is 2^-24, and adding 0.5, whose
    // last bit is 2^-24, lets the fp32 addition round.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<HalfBits>(
        sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<HalfBits>(sign | ((rounded - 0x38000000u) >> 13));
}

}  // namespace trunkline
