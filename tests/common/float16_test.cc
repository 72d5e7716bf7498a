#include "common/float16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "common/random.h"

namespace trunkline {
namespace {

TEST(Float16, EveryHalfComesBackFromItsFloat) {
  for (uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const float value = HalfToFloat(static_cast<HalfBits>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(HalfToFloat(FloatToHalf(value)))) << bits;
    } else {
      EXPECT_EQ(FloatToHalf(value), bits);
    }
  }
}

// Between two neighbours the nearer one; in the middle the even one.
TEST(Float16, NarrowingTakesTheNearestAndTheEvenInTheMiddle) {
  for (uint32_t bits = 0; bits < 0x7bffu; ++bits) {
    const float low = HalfToFloat(static_cast<HalfBits>(bits));
    const float high = HalfToFloat(static_cast<HalfBits>(bits + 1));
    const float middle = low + (high - low) / 2;  // exact in fp32
    const uint32_t even = (bits & 1u) == 0 ? bits : bits + 1;
    EXPECT_EQ(FloatToHalf(middle), even) << bits;
    EXPECT_EQ(FloatToHalf(-middle), even | 0x8000u) << bits;
    EXPECT_EQ(FloatToHalf(std::nextafterf(middle, 0.0f)), bits);
    EXPECT_EQ(FloatToHalf(std::nextafterf(middle, 1e6f)), bits + 1);
  }
}

TEST(Float16, WhatIsTooLargeIsInfinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(FloatToHalf(std::nextafterf(65520.0f, 0.0f)), 0x7bff);
  EXPECT_EQ(FloatToHalf(65520.0f), 0x7c00);
  EXPECT_EQ(FloatToHalf(-1e30f), 0xfc00);
  EXPECT_EQ(FloatToHalf(infinity), 0x7c00);
}

}  // namespace
}  // namespace trunkline
