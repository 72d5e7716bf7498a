// Class bf16dot against its plain definition, bit for bit. Machines without
// AVX512_BF16 skip, and hold only to what is said to them.

#include "kernels/bf16_dot.h"

#include <algorithm>
#include <limits>

#include "kernels/machine_limits.h"
#include "kernels/matmul.h"
#include "kernels/mlp.h"
#include "tests/kernels/kernel_test_support.h"

namespace trunkline::kernels {
namespace {

class Bf16Dot : public testing::Test {
 protected:
  void SetUp() override {
    if (!MachineHasBf16Dot()) GTEST_SKIP() << "this CPU has no AVX512_BF16";
  }
};

PackedMatrix PairMatrix(Source& source, ThreadPool& pool, int64_t n, int64_t k,
                        float scale = 0.25f) {
  return RandomMatrix(source, pool, n, k, DType::kBF16, scale,
                      Numerics::kBf16Dot);
}

// Lanes of one kind of operands through the instruction and the definition.
class Lanes {
 public:
  static constexpr int64_t kDots = 64;
  static constexpr int64_t kCount = kDots * 16;

  template <class MakeX, class MakeW, class MakeAcc>
  Lanes(const MakeX& make_x, const MakeW& make_w, const MakeAcc& make_acc)
      : x_(kCount), w_(kCount), acc_(kCount) {
    const auto pair = [](const auto& make) {
      const uint32_t low = make() & 0xffffu;
      return low | (make() & 0xffffu) << 16;
    };
    for (int64_t i = 0; i < kCount; ++i) {
      const auto at = static_cast<size_t>(i);
      x_[at] = pair(make_x);
      w_[at] = pair(make_w);
      acc_[at] = std::bit_cast<float>(make_acc());
    }
  }

  testing::AssertionResult Agree() const {
    std::vector<float> by_instruction = acc_;
    Bf16DotLanes(x_.data(), w_.data(), kDots, by_instruction.data());
    for (size_t i = 0; i < acc_.size(); ++i) {
      const float x0 = Low(x_[i]), x1 = High(x_[i]);
      const float w0 = Low(w_[i]), w1 = High(w_[i]);
      const float defined = reference::Bf16Dot(acc_[i], x0, x1, w0, w1);
      const float found = by_instruction[i];
      if (defined != defined && found != found) continue;
      if (std::bit_cast<uint32_t>(defined) != std::bit_cast<uint32_t>(found)) {
        return testing::AssertionFailure()
               << std::hexfloat << acc_[i] << " + " << x0 << "*" << w0 << " + "
               << x1 << "*" << w1 << " is " << found
               << " by the instruction, defined is " << defined;
      }
    }
    return testing::AssertionSuccess();
  }

 private:
  static float Low(uint32_t pair) { return std::bit_cast<float>(pair << 16); }
  static float High(uint32_t pair) {
    return std::bit_cast<float>(pair & 0xffff0000u);
  }
  std::vector<uint32_t> x_, w_;
  std::vector<float> acc_;
};

// A sign and fraction of any bits under an exponent between two bounds.
uint32_t WithExponent(Source& source, uint32_t bits, int fraction_bits,
                      int64_t low, int64_t high) {
  const uint32_t fraction = (1u << fraction_bits) - 1;
  const uint32_t sign = 0x100u << fraction_bits;
  return (bits & (sign | fraction)) |
         static_cast<uint32_t>(source.Between(low, high)) << fraction_bits;
}

TEST_F(Bf16Dot, TheInstructionIsTwoFusedMultiplyAddsOddElementFirst) {
  Source source(1);
  const auto moderate = [&] {
    return WithExponent(source, source.Bits(), 7, 118, 130);
  };
  const auto moderate_acc = [&] {
    return WithExponent(source, source.Bits(), 23, 112, 136);
  };
  for (int round = 0; round < 300; ++round)
    ASSERT_TRUE(Lanes(moderate, moderate, moderate_acc).Agree());
}

TEST_F(Bf16Dot, AnyBitsGiveWhatIsDefined) {
  Source source(2);
  const auto any = [&] { return source.Bits(); };
  for (int round = 0; round < 300; ++round)
    ASSERT_TRUE(Lanes(any, any, any).Agree());
}

// Operands and results around the smallest normal number: which of them become
// zero is part of the definition.
TEST_F(Bf16Dot, SubnormalOperandsAndTinyResultsAreZeros) {
  Source source(3);
  const auto small = [&] {
    return WithExponent(source, source.Bits(), 7, 40, 66);
  };
  const auto tiny = [&] {
    return WithExponent(source, source.Bits(), 7, 0, 2);
  };
  const auto large = [&] {
    return WithExponent(source, source.Bits(), 7, 126, 128);
  };
  const auto tiny_acc = [&] {
    return WithExponent(source, source.Bits(), 23, 0, 3);
  };
  // A fraction of few bits meets ties of the rounding.
  const auto edge_acc = [&] { return source.Bits() & 0x80800003u; };
  for (int round = 0; round < 300; ++round) {
    ASSERT_TRUE(Lanes(small, small, tiny_acc).Agree());
    ASSERT_TRUE(Lanes(small, small, edge_acc).Agree());
    ASSERT_TRUE(Lanes(tiny, large, tiny_acc).Agree());
  }
}

// Every number of rows on both sides of a register tile's and of two tiles',
// with odd sizes that fill no panel, no pair and no block.
TEST_F(Bf16Dot, ProductsEqualTheReferenceBitForBit) {
  Source source(4);
  for (int64_t rows = 0; rows <= 45; ++rows) {
    for (int round = 0; round < 3; ++round) {
      const int64_t n = source.Between(1, 300);
      const int64_t k = source.Between(1, round == 0 ? 900 : 90);
      const Activation out =
          source.Between(0, 1) == 0 ? Activation::kF32 : Activation::kBf16;
      ThreadPool& pool = PoolOf(static_cast<int>(source.Between(1, 3)));
      const PackedMatrix w = PairMatrix(source, pool, n, k);
      const Rows x = source.FilledRows(rows, k, k + source.Between(0, 5), out);
      Rows y(rows, n, n + source.Between(0, 5));
      Rows expected = y;
      MatMul({&pool}, ProductArgs(x, w, y, out));
      reference::MatMul(ProductArgs(x, w, expected, out));
      ASSERT_TRUE(SameBits(y, expected))
          << rows << " rows, n " << n << ", k " << k;
    }
  }
}

// More rows, panels and blocks than one task takes.
TEST_F(Bf16Dot, LargeProductsEqualTheReferenceBitForBit) {
  Source source(5);
  ThreadPool& pool = PoolOf(2);
  const PackedMatrix w = PairMatrix(source, pool, 333, 601);
  const Rows x = source.FilledRows(411, 601, 603, Activation::kBf16);
  Rows y(411, 333, 340);
  Rows expected = y;
  MatMul({&pool}, ProductArgs(x, w, y, Activation::kBf16));
  reference::MatMul(ProductArgs(x, w, expected, Activation::kBf16));
  EXPECT_TRUE(SameBits(y, expected));
}

// Products whose terms and sums are subnormal or tiny, and rows of fp32 values
// that bf16 does not hold.
TEST_F(Bf16Dot, TinyValuesEqualTheReferenceBitForBit) {
  Source source(6);
  ThreadPool& pool = PoolOf(1);
  for (const float scale : {0x1p-60f, 0x1p-66f, 0x1p-125f}) {
    for (const int64_t rows : {1, 4, 9, 31}) {
      const PackedMatrix w = PairMatrix(source, pool, 70, 37, scale);
      Rows x = source.FilledRows(rows, 37, 37, Activation::kF32, scale);
      x.at(0, 5) = std::numeric_limits<float>::denorm_min();
      x.at(rows - 1, 6) = 0x1.fffffep-127f;
      Rows y(rows, 70, 70);
      Rows expected = y;
      MatMul({&pool}, ProductArgs(x, w, y, Activation::kF32));
      reference::MatMul(ProductArgs(x, w, expected, Activation::kF32));
      ASSERT_TRUE(SameBits(y, expected)) << rows << " rows, scale " << scale;
    }
  }
}

TEST_F(Bf16Dot, KeepsInfinitiesAndNaNs) {
  Source source(7);
  ThreadPool& pool = PoolOf(1);
  const PackedMatrix w = PairMatrix(source, pool, 40, 21);
  for (const int64_t rows : {1, 5, 20}) {
    Rows x = source.FilledRows(rows, 21, 21, Activation::kBf16);
    x.at(0, 3) = std::numeric_limits<float>::infinity();
    x.at(rows - 1, 20) = std::numeric_limits<float>::quiet_NaN();
    Rows y(rows, 40, 40);
    Rows expected = y;
    MatMul({&pool}, ProductArgs(x, w, y, Activation::kBf16));
    reference::MatMul(ProductArgs(x, w, expected, Activation::kBf16));
    EXPECT_TRUE(SameBits(y, expected)) << rows << " rows";
  }
}

TEST_F(Bf16Dot, EmptyInnerDimensionGivesZero) {
  Source source(8);
  ThreadPool& pool = PoolOf(1);
  const PackedMatrix w = PairMatrix(source, pool, 5, 0);
  for (const int64_t rows : {1, 20}) {
    const Rows x(rows, 0, 1);
    Rows y(rows, 5, 5);
    MatMul({&pool}, ProductArgs(x, w, y, Activation::kF32));
    EXPECT_EQ(y.at(rows - 1, 4), 0.0f);
  }
}

// One row, one answer: alone, in small batches and in large ones.
TEST_F(Bf16Dot, ARowsBitsDoNotDependOnItsBatch) {
  Source source(9);
  ThreadPool& pool = PoolOf(2);
  const PackedMatrix w = PairMatrix(source, pool, 100, 391);
  const Rows x = source.FilledRows(64, 391, 391, Activation::kBf16);
  Rows together(64, 100, 100);
  MatMul({&pool}, ProductArgs(x, w, together, Activation::kBf16));
  for (const int64_t batch : {1, 2, 3, 6, 7, 14, 15, 17, 29}) {
    Rows parts(64, 100, 100);
    for (int64_t begin = 0; begin < 64; begin += batch) {
      MatMulArgs args = ProductArgs(x, w, parts, Activation::kBf16);
      args.x += begin * x.stride();
      args.y += begin * parts.stride();
      args.rows = std::min<int64_t>(batch, 64 - begin);
      MatMul({&pool}, args);
    }
    EXPECT_TRUE(SameBits(parts, together)) << "batches of " << batch;
  }
}

// Groups of none, one, a few and many rows in one call, rows gathered by index:
// a routed layer.
TEST_F(Bf16Dot, GroupedMlpEqualsTheReference) {
  Source source(10);
  MlpScratch scratch;
  for (int round = 0; round < 12; ++round) {
    ThreadPool& pool = PoolOf(static_cast<int>(source.Between(1, 3)));
    const RandomGroups groups(source, pool, DType::kBF16, Activation::kBf16,
                              Numerics::kBf16Dot);
    Rows y = groups.Output();
    Rows expected = y;
    reference::GroupedMlp(groups.Args(expected, Activation::kBf16));
    GroupedMlp({&pool}, groups.Args(y, Activation::kBf16), &scratch);
    ASSERT_TRUE(SameBits(y, expected)) << "round " << round;
  }
}

// A packed matrix holds what was stored, takes no more memory than the weights
// (but for whole panels and pairs), and gives any rows back.
TEST_F(Bf16Dot, PackingKeepsEveryElement) {
  Source source(11);
  ThreadPool& pool = PoolOf(2);
  for (const int64_t n : {1, 31, 32, 33, 100}) {
    for (const int64_t k : {1, 2, 7, 64, 129, 130}) {
      const StoredWeight stored(source, n, k, DType::kBF16);
      const PackedMatrix w =
          *PackedMatrix::Pack(stored.view(), pool, Numerics::kBf16Dot);
      EXPECT_EQ(w.bytes(), (n + 31) / 32 * 32 * ((k + 1) / 2 * 2) * 2);
      EXPECT_EQ(w.bytes(),
                PackedMatrix::BytesFor(n, k, DType::kBF16, Numerics::kBf16Dot));
      const auto bytes = static_cast<size_t>(n * k * 2);
      std::vector<std::byte> back(bytes + 1);
      w.Unpack(0, n, back.data() + 1);
      ASSERT_EQ(std::memcmp(back.data() + 1, stored.view().data, bytes), 0)
          << n << " x " << k;
      for (int64_t o = 0; o < n; ++o) {
        for (int64_t i = 0; i < k; ++i) {
          uint16_t bits;
          std::memcpy(&bits, stored.view().data + (o * k + i) * 2, 2);
          ASSERT_EQ(w.At(o, i), Bf16ToFloat(bits));
        }
      }
    }
  }
}

TEST_F(Bf16Dot, OtherWeightsThanBf16AreRefusedByName) {
  Source source(12);
  for (const DType dtype : {DType::kF32, DType::kF16}) {
    const StoredWeight stored(source, 4, 4, dtype);
    const auto packed =
        PackedMatrix::Pack(stored.view(), PoolOf(1), Numerics::kBf16Dot);
    ASSERT_EQ(packed.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_NE(std::string(packed.status().message()).find("weight is F"),
              std::string::npos)
        << packed.status();
  }
}

// One class, one digest, and not the other class's.
TEST_F(Bf16Dot, SelfCheckDigestIsItsOwnOnEveryTargetAndThreadCount) {
  for (const std::string& target : SupportedTargets()) {
    ASSERT_TRUE(SelectTarget(target).ok());
    for (const int threads : {1, 2, 3}) {
      const KernelContext context{&PoolOf(threads), Numerics::kBf16Dot};
      // Another value is another class: no replica of today's workers.
      EXPECT_EQ(SelfCheckDigest(context), "0732800921d9c914")
          << target << " " << threads;
      EXPECT_NE(SelfCheckDigest(context),
                SelfCheckDigest(KernelContext{&PoolOf(threads)}));
    }
  }
  ASSERT_TRUE(SelectTarget("auto").ok());
}

// What is said to whoever asks for a class; on every machine.
TEST(ChooseNumerics, TakesTheFastestThatMachineAndWeightsAllow) {
  const Numerics fastest = FastestNumerics();
  EXPECT_EQ(FastestNumerics(), fastest);
  EXPECT_EQ(SupportedNumerics().front(), Numerics::kPortable);
  EXPECT_EQ(SupportedNumerics().size(), MachineHasBf16Dot() ? 2u : 1u);
  if (!MachineHasBf16Dot()) {
    EXPECT_EQ(fastest, Numerics::kPortable);
    EXPECT_EQ(Bf16DotPeak(PoolOf(1), 1), 0.0);
  }
  EXPECT_EQ(ChooseNumerics("auto", DType::kBF16).value(), fastest);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    EXPECT_EQ(ChooseNumerics("portable", dtype).value(), Numerics::kPortable);
    if (dtype == DType::kBF16) continue;
    EXPECT_EQ(ChooseNumerics("auto", dtype).value(), Numerics::kPortable);
    EXPECT_EQ(ChooseNumerics("bf16dot", dtype).status().code(),
              absl::StatusCode::kFailedPrecondition);
  }
  const auto unknown = ChooseNumerics("fp8", DType::kBF16);
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(unknown.status().message()).find("\"fp8\""),
            std::string::npos);
  const auto dot = ChooseNumerics("bf16dot", DType::kBF16);
  EXPECT_EQ(dot.ok(), MachineHasBf16Dot());
  if (!dot.ok()) {
    EXPECT_NE(std::string(dot.status().message()).find("AVX512_BF16"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace trunkline::kernels
