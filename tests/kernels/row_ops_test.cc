#include "kernels/row_ops.h"

#include "common/float16.h"
#include "kernels/combine_rows.h"
#include "kernels/scalar_math.h"
#include "tests/kernels/kernel_test_support.h"

namespace trunkline::kernels {
namespace {

class RowOpsTest : public OnEveryTarget {};

Activation AnyType(Source& source) {
  return source.Between(0, 1) == 0 ? Activation::kF32 : Activation::kBf16;
}

TEST_P(RowOpsTest, RmsNormEqualsTheReference) {
  Source source(21);
  for (int64_t rows : {0, 1, 2, 5, 17, 40}) {
    for (int round = 0; round < 8; ++round) {
      const int64_t width = source.Between(1, round == 0 ? 5000 : 100);
      const Activation out = AnyType(source);
      Rows x = source.FilledRows(rows, width, width + source.Between(0, 3), out,
                                 30.0f);
      const std::vector<float> weight = source.Vector(width);
      Rows y(rows, width, width + 2);
      Rows expected = y;
      RmsNormArgs args;
      args.x = x.data();
      args.x_stride = x.stride();
      args.rows = rows;
      args.width = width;
      args.weight = weight.data();
      args.out = out;
      args.y = expected.data();
      args.y_stride = expected.stride();
      reference::RmsNorm(args);
      args.y = y.data();
      KernelContext context{&PoolOf(static_cast<int>(source.Between(1, 3)))};
      RmsNorm(context, args);
      ASSERT_TRUE(SameBits(y, expected)) << rows << " rows of " << width;
      // In place.
      args.y = x.data();
      args.y_stride = x.stride();
      RmsNorm(context, args);
      for (int64_t m = 0; m < rows; ++m) {
        for (int64_t i = 0; i < width; ++i) {
          ASSERT_EQ(x.at(m, i), expected.at(m, i));
        }
      }
    }
  }
}

TEST_P(RowOpsTest, GatedRmsNormEqualsTheReference) {
  Source source(22);
  for (int64_t rows : {0, 1, 3, 17}) {
    for (int64_t group : {1, 7, 16, 33, 128}) {
      const int64_t width = group * source.Between(1, 5);
      const Activation out = AnyType(source);
      const Rows x = source.FilledRows(rows, width, width + 1, out, 3.0f);
      const Rows z = source.FilledRows(rows, width, width + 5, out, 5.0f);
      const std::vector<float> weight = source.Vector(width);
      Rows y(rows, width, width + 3);
      Rows expected = y;
      GatedRmsNormArgs args;
      args.x = x.data();
      args.x_stride = x.stride();
      args.z = z.data();
      args.z_stride = z.stride();
      args.rows = rows;
      args.width = width;
      args.group_size = group;
      args.weight = weight.data();
      args.out = out;
      args.y_stride = y.stride();
      args.y = expected.data();
      reference::GatedRmsNorm(args);
      args.y = y.data();
      KernelContext context{&PoolOf(static_cast<int>(source.Between(1, 3)))};
      GatedRmsNorm(context, args);
      ASSERT_TRUE(SameBits(y, expected))
          << rows << " rows, groups of " << group;
    }
  }
}

TEST_P(RowOpsTest, ElementwiseOperationsEqualTheReference) {
  Source source(23);
  for (int64_t rows : {0, 1, 4, 17}) {
    for (int64_t width : {1, 15, 16, 31, 100, 2049}) {
      const Activation out = AnyType(source);
      KernelContext context{&PoolOf(static_cast<int>(source.Between(1, 3)))};
      Rows x = source.FilledRows(rows, width, width + 2, out);
      const Rows y = source.FilledRows(rows, width, width + 1, out);
      Rows expected = x;
      AddRows(context, x.data(), x.stride(), y.data(), y.stride(), rows, width,
              out);
      reference::AddRows(expected.data(), x.stride(), y.data(), y.stride(),
                         rows, width, out);
      ASSERT_TRUE(SameBits(x, expected));
      Relu2(context, x.data(), x.stride(), rows, width, out);
      reference::Relu2(expected.data(), x.stride(), rows, width, out);
      ASSERT_TRUE(SameBits(x, expected));
      Sigmoid(context, x.data(), x.stride(), rows, width);
      reference::Sigmoid(expected.data(), x.stride(), rows, width);
      ASSERT_TRUE(SameBits(x, expected));
    }
  }
}

// Every pattern that rounding to bf16 must get right: ties, overflow to
// infinity, subnormals, and NaNs that stay NaN.
TEST_P(RowOpsTest, RoundsToBf16AsTheScalarDefinitionDoes) {
  Source source(24);
  constexpr int64_t kCount = 100003;
  Rows x(1, kCount, kCount);
  for (int64_t i = 0; i < kCount; ++i) {
    uint32_t bits = source.Bits();
    if (i % 3 == 0) bits = (bits & 0xffff0000u) | 0x8000u;
    if (i % 5 == 0) bits |= 0x7f800000u;
    x.at(0, i) = std::bit_cast<float>(bits);
  }
  const Rows before = x;
  const std::vector<float> zero(kCount, -0.0f);
  KernelContext context{&PoolOf(1)};
  AddRows(context, x.data(), kCount, zero.data(), kCount, 1, kCount,
          Activation::kBf16);
  for (int64_t i = 0; i < kCount; ++i) {
    const float expected = RoundToBf16(before.at(0, i));
    if (expected != expected) {
      ASSERT_NE(x.at(0, i), x.at(0, i));
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(x.at(0, i)),
                std::bit_cast<uint32_t>(expected))
          << std::hexfloat << before.at(0, i);
    }
  }
}

TEST_P(RowOpsTest, EmbedsRowsOfEveryStoredType) {
  Source source(25);
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const StoredWeight table(source, 50, 37, dtype);
    const int32_t ids[] = {49, 0, 7, 7};
    Rows out(4, 37, 40);
    KernelContext context{&PoolOf(2)};
    EmbedRows(context, table.view(), ids, 4, out.data(), out.stride());
    for (int64_t r = 0; r < 4; ++r) {
      for (int64_t i = 0; i < 37; ++i) {
        const std::byte* at =
            table.view().data + (ids[r] * 37 + i) * DTypeBytes(dtype);
        float expected;
        uint16_t bits;
        std::memcpy(&bits, at, 2);
        if (dtype == DType::kF32) std::memcpy(&expected, at, 4);
        if (dtype == DType::kF16) expected = HalfToFloat(bits);
        if (dtype == DType::kBF16) expected = Bf16ToFloat(bits);
        ASSERT_EQ(out.at(r, i), expected);
      }
    }
  }
}

// Contributions of all three kinds, and rows without any.
TEST_P(RowOpsTest, CombineRowsEqualsTheReference) {
  Source source(26);
  for (int64_t rows : {0, 1, 2, 5, 17}) {
    for (int64_t width : {1, 33, 512, 515, 2688}) {
      const Activation out = AnyType(source);
      std::vector<uint32_t> offsets = {0};
      std::vector<Contribution> contributions;
      std::vector<std::vector<float>> floats;
      std::vector<std::vector<uint16_t>> halves;
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t count = source.Between(0, 6);
        for (int64_t c = 0; c < count; ++c) {
          Contribution contribution;
          contribution.gate = std::fabs(source.Normal());
          if (source.Between(0, 2) == 0) {
            halves.emplace_back(static_cast<size_t>(width));
            for (uint16_t& h : halves.back()) h = FloatToBf16(source.Normal());
            contribution.dtype = DType::kBF16;
            contribution.values =
                reinterpret_cast<const std::byte*>(halves.back().data());
          } else {
            floats.push_back(source.Vector(width));
            contribution.gated = source.Between(0, 1) == 0;
            contribution.values =
                reinterpret_cast<const std::byte*>(floats.back().data());
          }
          contributions.push_back(contribution);
        }
        offsets.push_back(static_cast<uint32_t>(contributions.size()));
      }
      Rows y(rows, width, width + 1);
      Rows expected = y;
      CombineArgs args;
      args.offsets = offsets;
      args.contributions = contributions;
      args.width = width;
      args.y_stride = y.stride();
      args.out = out;
      args.y = expected.data();
      reference::CombineRows(args);
      args.y = y.data();
      KernelContext context{&PoolOf(static_cast<int>(source.Between(1, 3)))};
      CombineRows(context, args);
      ASSERT_TRUE(SameBits(y, expected)) << rows << " rows of " << width;
      for (int64_t r = 0; r < rows; ++r) {
        if (offsets[static_cast<size_t>(r)] ==
            offsets[static_cast<size_t>(r) + 1]) {
          ASSERT_EQ(y.at(r, 0), 0.0f);
        }
      }
    }
  }
}

// The wire carries either the gated f32 row or the bf16 row and its gate.
TEST_P(RowOpsTest, GatedAndUngatedAnswersGiveTheSameBits) {
  Source source(27);
  constexpr int64_t kWidth = 301;
  constexpr size_t kExperts = 5;
  std::vector<std::vector<float>> gated(kExperts, std::vector<float>(kWidth));
  std::vector<std::vector<uint16_t>> narrow(kExperts,
                                            std::vector<uint16_t>(kWidth));
  std::vector<Contribution> by_worker(kExperts);
  std::vector<Contribution> by_trunk(kExperts);
  for (size_t e = 0; e < kExperts; ++e) {
    std::vector<float> row(kWidth);
    for (float& v : row) v = RoundToBf16(source.Normal());
    const float gate = std::fabs(source.Normal());
    GateRow(row.data(), gate, kWidth, gated[e].data());
    NarrowRow(row.data(), kWidth, narrow[e].data());
    std::vector<float> wide(kWidth);
    WidenRow(narrow[e].data(), kWidth, wide.data());
    ASSERT_EQ(wide, row);
    by_worker[e].values = reinterpret_cast<const std::byte*>(gated[e].data());
    by_worker[e].gated = true;
    by_trunk[e].values = reinterpret_cast<const std::byte*>(narrow[e].data());
    by_trunk[e].dtype = DType::kBF16;
    by_trunk[e].gate = gate;
  }
  const uint32_t offsets[] = {0, kExperts};
  Rows a(1, kWidth, kWidth);
  Rows b(1, kWidth, kWidth);
  CombineArgs args;
  args.offsets = offsets;
  args.width = kWidth;
  args.y_stride = kWidth;
  KernelContext context{&PoolOf(2)};
  args.contributions = by_worker;
  args.y = a.data();
  CombineRows(context, args);
  args.contributions = by_trunk;
  args.y = b.data();
  CombineRows(context, args);
  EXPECT_TRUE(SameBits(a, b));
}

TRUNKLINE_ON_EVERY_TARGET(RowOpsTest);

}  // namespace
}  // namespace trunkline::kernels
