#pragma once

// What the kernel tests share: rows with awkward values and strides, packed
// random matrices, and runs on every SIMD target the machine has.

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/bfloat16.h"
#include "common/tensor_view.h"
#include "common/thread_pool.h"
#include "kernels/kernel_context.h"
#include "kernels/matmul.h"
#include "kernels/mlp.h"
#include "kernels/packed_matrix.h"

namespace trunkline::kernels {

// Rows of `width` values, `stride` apart; the gaps hold a mark that no kernel
// may touch.
class Rows {
 public:
  static constexpr float kGap = -12345.5f;

  Rows(int64_t rows, int64_t width, int64_t stride)
      : rows_(rows),
        width_(width),
        stride_(stride),
        data_(static_cast<size_t>(rows * stride + 1), kGap) {}

  float* data() { return data_.data(); }
  const float* data() const { return data_.data(); }
  int64_t rows() const { return rows_; }
  int64_t width() const { return width_; }
  int64_t stride() const { return stride_; }
  float& at(int64_t row, int64_t i) {
    return data_[static_cast<size_t>(row * stride_ + i)];
  }
  float at(int64_t row, int64_t i) const {
    return data_[static_cast<size_t>(row * stride_ + i)];
  }

  // Bitwise, any NaN equal to any other, gaps included.
  friend testing::AssertionResult SameBits(const Rows& a, const Rows& b) {
    if (a.data_.size() != b.data_.size()) {
      return testing::AssertionFailure() << "sizes differ";
    }
    for (size_t i = 0; i < a.data_.size(); ++i) {
      const float x = a.data_[i];
      const float y = b.data_[i];
      if (x != x && y != y) continue;
      if (std::bit_cast<uint32_t>(x) != std::bit_cast<uint32_t>(y)) {
        return testing::AssertionFailure()
               << "row " << i / static_cast<size_t>(a.stride_) << " column "
               << i % static_cast<size_t>(a.stride_) << ": " << std::hexfloat
               << x << " against " << y;
      }
    }
    return testing::AssertionSuccess();
  }

 private:
  int64_t rows_;
  int64_t width_;
  int64_t stride_;
  std::vector<float> data_;
};

class Source {
 public:
  explicit Source(uint64_t seed) : engine_(seed) {}

  int64_t Between(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }
  float Normal(float scale = 1.0f) {
    return scale * std::normal_distribution<float>()(engine_);
  }
  uint32_t Bits() { return static_cast<uint32_t>(engine_()); }

  // Values of the activation type, among them zeros of both signs.
  float Value(Activation type, float scale = 1.0f) {
    const int64_t kind = Between(0, 40);
    float v = Normal(scale);
    if (kind == 0) v = 0.0f;
    if (kind == 1) v = -0.0f;
    return type == Activation::kBf16 ? RoundToBf16(v) : v;
  }
  Rows FilledRows(int64_t rows, int64_t width, int64_t stride, Activation type,
                  float scale = 1.0f) {
    Rows filled(rows, width, stride);
    for (int64_t m = 0; m < rows; ++m) {
      for (int64_t i = 0; i < width; ++i) filled.at(m, i) = Value(type, scale);
    }
    return filled;
  }
  std::vector<float> Vector(int64_t count, float scale = 1.0f) {
    std::vector<float> v(static_cast<size_t>(count));
    for (float& x : v) x = Normal(scale);
    return v;
  }

 private:
  std::mt19937_64 engine_;
};

// A random [n, k] weight in its stored form, at an odd address where the type
// allows to tell (safetensors promises no alignment).
class StoredWeight {
 public:
  StoredWeight(Source& source, int64_t n, int64_t k, DType dtype,
               float scale = 0.25f)
      : bytes_(static_cast<size_t>(n * k * DTypeBytes(dtype) + 1)) {
    view_.name = "weight";
    view_.dtype = dtype;
    view_.shape = {n, k};
    view_.data = bytes_.data() + 1;
    for (int64_t i = 0; i < n * k; ++i) {
      std::byte* to = bytes_.data() + 1 + i * DTypeBytes(dtype);
      const float v = source.Normal(scale);
      if (dtype == DType::kF32) {
        std::memcpy(to, &v, 4);
      } else if (dtype == DType::kBF16) {
        const uint16_t bits = FloatToBf16(v);
        std::memcpy(to, &bits, 2);
      } else {
        // Any finite half, subnormal ones too, of moderate size.
        const auto bits = static_cast<uint16_t>(
            (source.Bits() & 0x83ffu) |
            (static_cast<uint32_t>(source.Between(0, 15)) << 10));
        std::memcpy(to, &bits, 2);
      }
    }
  }
  const TensorView& view() const { return view_; }

 private:
  std::vector<std::byte> bytes_;
  TensorView view_;
};

inline PackedMatrix RandomMatrix(Source& source, ThreadPool& pool, int64_t n,
                                 int64_t k, DType dtype, float scale = 0.25f,
                                 Numerics numerics = Numerics::kPortable) {
  const StoredWeight stored(source, n, k, dtype, scale);
  auto packed = PackedMatrix::Pack(stored.view(), pool, numerics);
  EXPECT_TRUE(packed.ok()) << packed.status();
  return *std::move(packed);
}

inline MatMulArgs ProductArgs(const Rows& x, const PackedMatrix& w, Rows& y,
                              Activation out) {
  MatMulArgs args;
  args.x = x.data();
  args.x_stride = x.stride();
  args.rows = y.rows();
  args.w = &w;
  args.y = y.data();
  args.y_stride = y.stride();
  args.out = out;
  return args;
}

// Five experts of random sizes with none, a few or many rows each, gathered by
// index from 13 of x.
struct RandomGroups {
  RandomGroups(Source& source, ThreadPool& pool, DType dtype, Activation out,
               Numerics numerics = Numerics::kPortable)
      : width(source.Between(1, 90)), weights(5) {
    for (MlpWeights& w : weights) {
      const int64_t inner = source.Between(1, 120);
      w.up = RandomMatrix(source, pool, inner, width, dtype, 0.25f, numerics);
      w.down = RandomMatrix(source, pool, width, inner, dtype, 0.25f, numerics);
      const int64_t count = source.Between(0, 2) == 0 ? source.Between(9, 40)
                                                      : source.Between(0, 8);
      groups.push_back({&w, rows, count});
      rows += count;
    }
    x.push_back(source.FilledRows(13, width, width + 3, out));
    index.resize(static_cast<size_t>(rows));
    for (uint32_t& i : index) i = static_cast<uint32_t>(source.Between(0, 12));
  }
  // The groups point into the weights.
  RandomGroups(const RandomGroups&) = delete;

  Rows Output() const { return Rows(rows, width, width + 1); }
  GroupedMlpArgs Args(Rows& y, Activation out) const {
    GroupedMlpArgs args;
    args.x = x.front().data();
    args.x_stride = x.front().stride();
    args.row_index = index.data();
    args.groups = groups;
    args.y = y.data();
    args.y_stride = y.stride();
    args.out = out;
    return args;
  }

  int64_t width;
  std::vector<MlpWeights> weights;
  std::vector<MlpGroup> groups;
  int64_t rows = 0;
  std::vector<Rows> x;  // one
  std::vector<uint32_t> index;
};

// A test body's threads: 1, 2 and 3.
inline ThreadPool& PoolOf(int threads) {
  static std::vector<std::unique_ptr<ThreadPool>> pools(8);
  auto& pool = pools[static_cast<size_t>(threads)];
  if (pool == nullptr) {
    ThreadPool::Options options;
    options.threads = threads;
    options.spin_microseconds = 5;
    pool = std::make_unique<ThreadPool>(options);
  }
  return *pool;
}

// Selects the target of the test's parameter, and the best one again at the
// end.
class OnEveryTarget : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(SelectTarget(GetParam()).ok()); }
  void TearDown() override { ASSERT_TRUE(SelectTarget("auto").ok()); }
};

inline std::string TargetName(const testing::TestParamInfo<std::string>& info) {
  return info.param;
}

}  // namespace trunkline::kernels

#define TRUNKLINE_ON_EVERY_TARGET(suite)                           \
  INSTANTIATE_TEST_SUITE_P(                                        \
      Targets, suite,                                              \
      testing::ValuesIn(::trunkline::kernels::SupportedTargets()), \
      ::trunkline::kernels::TargetName)
