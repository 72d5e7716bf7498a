#include "kernels/packed_matrix.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>

#include "common/float16.h"
#include "common/random.h"
#include "tests/kernels/kernel_test_support.h"

namespace trunkline::kernels {
namespace {

// A stored matrix of random bits at an odd address, as a file may hold it. The
// element's bits are what counts, so NaN and infinity are among them.
class StoredMatrix {
 public:
  StoredMatrix(int64_t n, int64_t k, DType dtype, uint64_t seed)
      : bytes_(static_cast<size_t>(n * k * DTypeBytes(dtype)) + 1) {
    RandomStream random(seed);
    for (std::byte& b : bytes_) b = static_cast<std::byte>(random.Next());
    view_.name = "w";
    view_.dtype = dtype;
    view_.shape = {n, k};
    view_.data = bytes_.data() + 1;
  }
  const TensorView& view() const { return view_; }
  float At(int64_t output, int64_t input) const {
    const std::byte* at = view_.data + (output * view_.shape[1] + input) *
                                           DTypeBytes(view_.dtype);
    if (view_.dtype == DType::kF32) {
      float value = 0;
      std::memcpy(&value, at, sizeof(value));
      return value;
    }
    uint16_t bits = 0;
    std::memcpy(&bits, at, sizeof(bits));
    return view_.dtype == DType::kBF16 ? Bf16ToFloat(bits) : HalfToFloat(bits);
  }

 private:
  std::vector<std::byte> bytes_;
  TensorView view_;
};

// Every element stands where the kernels look for it, whatever the target that
// packed, and outputs that do not exist are zero.
TEST(PackedMatrix, HoldsEveryElementOfAwkwardShapes) {
  ThreadPool::Options threads;
  threads.threads = 3;
  ThreadPool pool(threads);
  const int64_t shapes[][2] = {{1, 1},    {31, 33},  {32, 32},  {32, 31},
                               {64, 100}, {33, 64},  {70, 257}, {96, 128},
                               {5, 200},  {128, 16}, {32, 97}};
  for (const std::string& target : SupportedTargets()) {
    ASSERT_TRUE(SelectTarget(target).ok());
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      for (const auto& [n, k] : shapes) {
        const StoredMatrix stored(n, k, dtype, static_cast<uint64_t>(n * k));
        auto packed = PackedMatrix::Pack(stored.view(), pool);
        ASSERT_TRUE(packed.ok()) << packed.status();
        for (int64_t output = 0; output < n; ++output) {
          for (int64_t input = 0; input < k; ++input) {
            ASSERT_EQ(std::bit_cast<uint32_t>(packed->At(output, input)),
                      std::bit_cast<uint32_t>(stored.At(output, input)))
                << target << " " << DTypeName(dtype) << " " << n << "x" << k
                << " at " << output << ", " << input;
          }
        }
        int64_t ones = 0, stored_ones = 0;
        for (int64_t i = 0; i < packed->bytes(); ++i)
          ones += std::popcount(static_cast<uint8_t>(packed->panel(0)[i]));
        for (int64_t i = 0; i < n * k * DTypeBytes(dtype); ++i)
          stored_ones +=
              std::popcount(static_cast<uint8_t>(stored.view().data[i]));
        EXPECT_EQ(ones, stored_ones) << "padding is not zero";
      }
    }
  }
  ASSERT_TRUE(SelectTarget("auto").ok());
}

}  // namespace
}  // namespace trunkline::kernels
