#include "common/bfloat16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace trunkline {
namespace {

TEST(Bfloat16, NarrowingRoundsToNearestEven) {
  EXPECT_EQ(FloatToBf16(1.0f), 0x3f80);
  EXPECT_EQ(FloatToBf16(std::bit_cast<float>(0x3f808000u)),
            0x3f80);  // half way, even below
  EXPECT_EQ(FloatToBf16(std::bit_cast<float>(0x3f818000u)),
            0x3f82);  // half way, even above
  EXPECT_EQ(FloatToBf16(std::bit_cast<float>(0x3f808001u)), 0x3f81);
}

TEST(Bfloat16, EveryBf16ValueSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const float wide = Bf16ToFloat(static_cast<Bf16Bits>(bits));
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(RoundToBf16(wide)));
    } else {
      ASSERT_EQ(FloatToBf16(wide), bits);
    }
  }
}

TEST(Bfloat16, NanWithLowBitsOnlyStaysNan) {
  EXPECT_TRUE(std::isnan(RoundToBf16(std::bit_cast<float>(0x7f800001u))));
}

TEST(Bfloat16, LargestFloatRoundsToInfinity) {
  EXPECT_TRUE(std::isinf(RoundToBf16(std::numeric_limits<float>::max())));
}

}  // namespace
}  // namespace trunkline
