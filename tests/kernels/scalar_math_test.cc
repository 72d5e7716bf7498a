#include "kernels/scalar_math.h"

#include <cmath>
#include <limits>

#include "common/float16.h"
#include "kernels/array_math.h"
#include "tests/kernels/kernel_test_support.h"

namespace trunkline::kernels {
namespace {

struct Function {
  MathFunction id;
  float (*scalar)(float);
  long double (*exact)(long double);
  float low;
  float high;
  double ulps;  // allowed
  const char* name;
};

long double ExactSoftplus(long double x) { return log1pl(expl(x)); }
long double ExactSigmoid(long double x) { return 1.0L / (1.0L + expl(-x)); }
long double ExactSilu(long double x) { return x / (1.0L + expl(-x)); }

const Function kFunctions[] = {
    {MathFunction::kExp, Exp, expl, -103.0f, 88.7f, 1.0, "exp"},
    {MathFunction::kLog, Log, logl, 1e-44f, 3.4e38f, 1.0, "log"},
    {MathFunction::kLog1p, Log1p, log1pl, 0.0f, 3.4e38f, 1.0, "log1p"},
    {MathFunction::kSoftplus, Softplus, ExactSoftplus, -87.0f, 100.0f, 2.0,
     "softplus"},
    {MathFunction::kSigmoid, SigmoidScalar, ExactSigmoid, -87.0f, 100.0f, 2.5,
     "sigmoid"},
    {MathFunction::kSilu, Silu, ExactSilu, -88.0f, 1e6f, 2.5, "silu"},
};

// Distance in units in the last place of the float nearest to the truth.
double UlpError(float value, long double truth) {
  const float nearest = static_cast<float>(truth);
  int exponent;
  std::frexp(nearest, &exponent);
  const long double ulp = std::ldexp(1.0L, exponent - 24);
  return static_cast<double>(
      std::fabs((static_cast<long double>(value) - truth) / ulp));
}

TEST(ScalarMath, IsAsAccurateAsPromisedWhereTheResultIsNormal) {
  Source source(11);
  for (const Function& f : kFunctions) {
    double worst = 0;
    float where = 0;
    for (int i = 0; i < 400000; ++i) {
      // Half of the points by value, half by bit pattern: all magnitudes.
      float x;
      if (i % 2 == 0) {
        x = f.low +
            (f.high - f.low) * static_cast<float>(source.Bits()) * 0x1p-32f;
      } else {
        x = std::bit_cast<float>(source.Bits());
      }
      if (!(x >= f.low && x <= f.high)) continue;
      const long double truth = f.exact(x);
      if (std::fabs(truth) < 0x1p-126L) continue;
      const double error = UlpError(f.scalar(x), truth);
      if (error > worst) {
        worst = error;
        where = x;
      }
    }
    RecordProperty(f.name, std::to_string(worst));
    EXPECT_LE(worst, f.ulps) << f.name << " at " << std::hexfloat << where;
  }
}

TEST(ScalarMath, MeetsItsLimits) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::signaling_NaN();
  EXPECT_EQ(Exp(0.0f), 1.0f);
  EXPECT_EQ(Exp(-104.1f), 0.0f);
  EXPECT_EQ(Exp(-inf), 0.0f);
  EXPECT_EQ(Exp(88.73f), inf);
  EXPECT_EQ(Exp(inf), inf);
  EXPECT_EQ(Exp(-103.0f), 0x1p-149f);
  EXPECT_EQ(Log(1.0f), 0.0f);
  EXPECT_EQ(Log(0.0f), -inf);
  EXPECT_EQ(Log(-0.0f), -inf);
  EXPECT_EQ(Log(inf), inf);
  EXPECT_TRUE(std::isnan(Log(-1.0f)));
  EXPECT_EQ(Log1p(0.0f), 0.0f);
  EXPECT_EQ(Log1p(inf), inf);
  EXPECT_TRUE(std::isnan(Log1p(-0.5f)));
  EXPECT_EQ(Softplus(21.5f), 21.5f);
  EXPECT_EQ(Softplus(-inf), 0.0f);
  EXPECT_EQ(SigmoidScalar(0.0f), 0.5f);
  EXPECT_EQ(SigmoidScalar(-inf), 0.0f);
  EXPECT_EQ(Silu(0.0f), 0.0f);
  EXPECT_EQ(Silu(-inf), 0.0f);
  EXPECT_EQ(Silu(inf), inf);
  for (const Function& f : kFunctions) {
    EXPECT_EQ(std::bit_cast<uint32_t>(f.scalar(nan)), 0x7fc00000u) << f.name;
    EXPECT_EQ(std::bit_cast<uint32_t>(f.scalar(-nan)), 0x7fc00000u) << f.name;
  }
}

class ArrayMathTest : public OnEveryTarget {};

// Bit patterns from the whole range: subnormal, infinite and not-a-number too.
TEST_P(ArrayMathTest, EqualsTheScalarDefinitionBitForBit) {
  Source source(12);
  constexpr int64_t kCount = 1 << 16;
  std::vector<float> x(kCount + 3);
  std::vector<float> y(x.size());
  const int rounds = GetParam() == "scalar" ? 4 : 16;
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < x.size(); ++i) {
      uint32_t bits = source.Bits();
      if (i % 3 == 0) bits = (bits & 0x807fffffu) | ((122u + bits % 13u) << 23);
      x[i] = std::bit_cast<float>(bits);
    }
    for (const Function& f : kFunctions) {
      ApplyMath(f.id, x.data(), static_cast<int64_t>(x.size()), y.data());
      for (size_t i = 0; i < x.size(); ++i) {
        const float expected = f.scalar(x[i]);
        ASSERT_EQ(std::bit_cast<uint32_t>(y[i]),
                  std::bit_cast<uint32_t>(expected))
            << f.name << " of " << std::hexfloat << x[i] << ": " << y[i]
            << " against " << expected;
      }
    }
  }
}

TRUNKLINE_ON_EVERY_TARGET(ArrayMathTest);

TEST(HalfToFloat, WidensEveryPatternExactly) {
  for (uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const uint32_t exponent = (bits >> 10) & 31u;
    const float mantissa = static_cast<float>(bits & 0x3ffu);
    const float sign = (bits & 0x8000u) != 0 ? -1.0f : 1.0f;
    const float value = HalfToFloat(static_cast<uint16_t>(bits));
    if (exponent == 31 && mantissa != 0) {
      EXPECT_TRUE(std::isnan(value));
    } else if (exponent == 31) {
      EXPECT_EQ(value, sign * std::numeric_limits<float>::infinity());
    } else if (exponent == 0) {
      EXPECT_EQ(value, sign * std::ldexp(mantissa, -24));
    } else {
      EXPECT_EQ(value, sign * std::ldexp(1024.0f + mantissa,
                                         static_cast<int>(exponent) - 25));
    }
  }
}

TEST(SelectTarget, SwitchesAndNamesWhatIsSupported) {
  for (const std::string& name : SupportedTargets()) {
    ASSERT_TRUE(SelectTarget(name).ok());
    EXPECT_EQ(ActiveTarget(), name);
  }
  const absl::Status status = SelectTarget("avx9");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(status.message()).find("scalar"), std::string::npos);
  EXPECT_EQ(ActiveTarget(), SupportedTargets().back());
  ASSERT_TRUE(SelectTarget("auto").ok());
  EXPECT_EQ(ActiveTarget(), SupportedTargets().front());
}

}  // namespace
}  // namespace trunkline::kernels
