#pragma once

// bf16 as 16 raw bits: widening is exact, narrowing rounds to nearest even and
// keeps NaN a NaN.

#include <bit>
#include <cstdint>

namespace trunkline {

using Bf16Bits = uint16_t;

inline float Bf16ToFloat(Bf16Bits bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

inline Bf16Bits FloatToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    return static_cast<Bf16Bits>((bits >> 16) | 0x40u);
  return static_cast<Bf16Bits>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float RoundToBf16(float value) {
  return Bf16ToFloat(FloatToBf16(value));
}

}  // namespace trunkline
