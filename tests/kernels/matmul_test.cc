#include "kernels/matmul.h"

#include "kernels/panel_product.h"
#include "tests/kernels/kernel_test_support.h"

namespace trunkline::kernels {
namespace {

class MatMulTest : public OnEveryTarget {};

// Every number of rows on both sides of the direct path's limit and of a row
// tile's, with sizes that fill no panel and no block.
TEST_P(MatMulTest, EqualsTheReferenceBitForBit) {
  Source source(1);
  const DType dtypes[] = {DType::kF32, DType::kF16, DType::kBF16};
  for (int64_t rows = 0; rows <= 60; ++rows) {
    for (DType dtype : dtypes) {
      const int64_t n = source.Between(1, 150);
      const int64_t k = source.Between(1, rows % 3 == 0 ? 600 : 90);
      const Activation out =
          source.Between(0, 1) == 0 ? Activation::kF32 : Activation::kBf16;
      ThreadPool& pool = PoolOf(static_cast<int>(source.Between(1, 3)));
      const PackedMatrix w = RandomMatrix(source, pool, n, k, dtype);
      const Rows x = source.FilledRows(rows, k, k + source.Between(0, 5), out);
      Rows y(rows, n, n + source.Between(0, 5));
      Rows expected = y;
      KernelContext context{&pool};
      MatMul(context, ProductArgs(x, w, y, out));
      reference::MatMul(ProductArgs(x, w, expected, out));
      ASSERT_TRUE(SameBits(y, expected)) << rows << " rows, n " << n << ", k "
                                         << k << ", " << DTypeName(dtype);
    }
  }
}

// More rows and panels than one task takes.
TEST_P(MatMulTest, LargeProductsEqualTheReferenceBitForBit) {
  Source source(2);
  ThreadPool& pool = PoolOf(2);
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const PackedMatrix w = RandomMatrix(source, pool, 333, 301, dtype);
    for (int64_t rows : {217, 701}) {
      const Rows x = source.FilledRows(rows, 301, 303, Activation::kBf16);
      Rows y(rows, 333, 340);
      Rows expected = y;
      KernelContext context{&pool};
      MatMul(context, ProductArgs(x, w, y, Activation::kBf16));
      reference::MatMul(ProductArgs(x, w, expected, Activation::kBf16));
      EXPECT_TRUE(SameBits(y, expected)) << DTypeName(dtype) << ", " << rows;
    }
  }
}

TEST_P(MatMulTest, RowIndexGathersRows) {
  Source source(3);
  ThreadPool& pool = PoolOf(3);
  for (int64_t rows : {1, 5, 8, 9, 26}) {
    const PackedMatrix w = RandomMatrix(source, pool, 70, 45, DType::kBF16);
    const Rows x = source.FilledRows(11, 45, 47, Activation::kF32);
    std::vector<uint32_t> index(static_cast<size_t>(rows));
    for (uint32_t& i : index) i = static_cast<uint32_t>(source.Between(0, 10));
    Rows y(rows, 70, 70);
    Rows expected = y;
    KernelContext context{&pool};
    MatMulArgs args = ProductArgs(x, w, y, Activation::kF32);
    args.row_index = index.data();
    MatMul(context, args);
    args.y = expected.data();
    reference::MatMul(args);
    EXPECT_TRUE(SameBits(y, expected)) << rows << " rows";
  }
}

// One row, one answer: alone, in a small batch, in a large one.
TEST_P(MatMulTest, ARowsBitsDoNotDependOnItsBatch) {
  Source source(4);
  ThreadPool& pool = PoolOf(2);
  const PackedMatrix w = RandomMatrix(source, pool, 100, 390, DType::kBF16);
  const Rows x = source.FilledRows(64, 390, 390, Activation::kBf16);
  Rows together(64, 100, 100);
  KernelContext context{&pool};
  MatMul(context, ProductArgs(x, w, together, Activation::kBf16));
  for (int64_t batch : {1, 2, 3, 7, 13, 17}) {
    Rows parts(64, 100, 100);
    for (int64_t begin = 0; begin < 64; begin += batch) {
      MatMulArgs args = ProductArgs(x, w, parts, Activation::kBf16);
      args.x += begin * x.stride();
      args.y += begin * parts.stride();
      args.rows = std::min<int64_t>(batch, 64 - begin);
      MatMul(context, args);
    }
    EXPECT_TRUE(SameBits(parts, together)) << "batches of " << batch;
  }
}

// Infinite and not-a-number inputs come through, and none is made up.
TEST_P(MatMulTest, KeepsInfinitiesAndNaNs) {
  Source source(5);
  ThreadPool& pool = PoolOf(1);
  const PackedMatrix w = RandomMatrix(source, pool, 40, 20, DType::kF32);
  for (int64_t rows : {1, 9}) {
    Rows x = source.FilledRows(rows, 20, 20, Activation::kF32);
    x.at(0, 3) = std::numeric_limits<float>::infinity();
    x.at(rows - 1, 7) = std::numeric_limits<float>::quiet_NaN();
    Rows y(rows, 40, 40);
    Rows expected = y;
    KernelContext context{&pool};
    MatMul(context, ProductArgs(x, w, y, Activation::kBf16));
    reference::MatMul(ProductArgs(x, w, expected, Activation::kBf16));
    EXPECT_TRUE(SameBits(y, expected));
  }
}

TEST_P(MatMulTest, EmptyInnerDimensionGivesZero) {
  Source source(6);
  ThreadPool& pool = PoolOf(1);
  const PackedMatrix w = RandomMatrix(source, pool, 5, 0, DType::kBF16);
  for (int64_t rows : {1, 20}) {
    const Rows x(rows, 0, 1);
    Rows y(rows, 5, 5);
    KernelContext context{&pool};
    MatMul(context, ProductArgs(x, w, y, Activation::kF32));
    EXPECT_EQ(y.at(rows - 1, 4), 0.0f);
  }
}

TRUNKLINE_ON_EVERY_TARGET(MatMulTest);

TEST(RowTiles, CoverAllRowsInNearlyEqualParts) {
  for (int64_t rows = 1; rows < 100; ++rows) {
    const RowTiles tiles(rows, 12);
    int64_t sum = 0;
    for (int64_t t = 0; t < tiles.count; ++t) {
      EXPECT_EQ(tiles.begin(t), sum);
      EXPECT_LE(tiles.size(t), 12);
      EXPECT_GE(tiles.size(t), rows / tiles.count);
      sum += tiles.size(t);
    }
    EXPECT_EQ(sum, rows);
  }
}

TEST(PackedMatrix, KeepsEveryElement) {
  Source source(7);
  ThreadPool& pool = PoolOf(2);
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (int64_t n : {1, 31, 32, 33, 100}) {
      const int64_t k = source.Between(1, 300);
      const StoredWeight stored(source, n, k, dtype);
      const PackedMatrix w = *PackedMatrix::Pack(stored.view(), pool);
      EXPECT_EQ(w.n(), n);
      EXPECT_EQ(w.k(), k);
      const StoredWeight& s = stored;
      for (int64_t o = 0; o < n; ++o) {
        for (int64_t i = 0; i < k; ++i) {
          const std::byte* at = s.view().data + (o * k + i) * DTypeBytes(dtype);
          if (dtype == DType::kF32) {
            float v;
            std::memcpy(&v, at, 4);
            ASSERT_EQ(w.At(o, i), v);
          } else if (dtype == DType::kBF16) {
            uint16_t bits;
            std::memcpy(&bits, at, 2);
            ASSERT_EQ(w.At(o, i), Bf16ToFloat(bits));
          }
        }
      }
    }
  }
}

TEST(PackedMatrix, RefusesATensorThatIsNoMatrixByNameAndShape) {
  TensorView conv;
  conv.name = "layers.0.mixer.conv1d.weight";
  conv.shape = {8, 1, 4};
  const auto packed = PackedMatrix::Pack(conv, PoolOf(1));
  ASSERT_FALSE(packed.ok());
  EXPECT_NE(std::string(packed.status().message())
                .find("layers.0.mixer.conv1d.weight has shape [8, 1, 4]"),
            std::string::npos)
      << packed.status();
}

}  // namespace
}  // namespace trunkline::kernels
