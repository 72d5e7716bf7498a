#include "common/aligned_buffer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

namespace trunkline {
namespace {

TEST(AlignedBuffer, IsZeroAndOnACacheLineForEverySize) {
  for (size_t bytes : {size_t{1}, size_t{63}, size_t{64}, size_t{4097},
                       (size_t{2} << 20) - 1, size_t{5} << 20}) {
    AlignedBuffer buffer(bytes);
    ASSERT_EQ(buffer.size(), bytes);
    EXPECT_EQ(
        reinterpret_cast<uintptr_t>(buffer.data()) % AlignedBuffer::kAlignment,
        0u);
    EXPECT_TRUE(std::all_of(buffer.data(), buffer.data() + bytes,
                            [](std::byte b) { return b == std::byte{0}; }));
  }
}

TEST(AlignedBuffer, MovingHandsTheBytesOver) {
  AlignedBuffer a(128);
  a.data()[7] = std::byte{9};
  AlignedBuffer b = std::move(a);
  EXPECT_EQ(b.data()[7], std::byte{9});
  EXPECT_EQ(b.size(), 128u);
}

}  // namespace
}  // namespace trunkline
