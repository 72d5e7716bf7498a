#include "kernels/array_math.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/array_math.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace trunkline::kernels {
namespace HWY_NAMESPACE {

void ApplyMathOnTarget(MathFunction function, const float* x, int64_t count,
                       float* y) {
  const auto apply = [&](const auto& f) TRUNKLINE_INLINE_LAMBDA {
    ForLanes(count, [&](auto d, int64_t i) TRUNKLINE_INLINE_LAMBDA {
      hn::StoreU(f(d, hn::LoadU(d, x + i)), d, y + i);
    });
  };
  switch (function) {
    case MathFunction::kExp:
      return apply([](auto d, auto v)
                       TRUNKLINE_INLINE_LAMBDA { return VecExp(d, v); });
    case MathFunction::kLog:
      return apply([](auto d, auto v)
                       TRUNKLINE_INLINE_LAMBDA { return VecLog(d, v); });
    case MathFunction::kLog1p:
      return apply([](auto d, auto v)
                       TRUNKLINE_INLINE_LAMBDA { return VecLog1p(d, v); });
    case MathFunction::kSoftplus:
      return apply([](auto d, auto v)
                       TRUNKLINE_INLINE_LAMBDA { return VecSoftplus(d, v); });
    case MathFunction::kSigmoid:
      return apply([](auto d, auto v)
                       TRUNKLINE_INLINE_LAMBDA { return VecSigmoid(d, v); });
    case MathFunction::kSilu:
      return apply([](auto d, auto v)
                       TRUNKLINE_INLINE_LAMBDA { return VecSilu(d, v); });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace trunkline::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trunkline::kernels {

HWY_EXPORT(ApplyMathOnTarget);

void ApplyMath(MathFunction function, const float* x, int64_t count, float* y) {
  HWY_DYNAMIC_DISPATCH(ApplyMathOnTarget)(function, x, count, y);
}

}  // namespace trunkline::kernels
#endif  // HWY_ONCE
