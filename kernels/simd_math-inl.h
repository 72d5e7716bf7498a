// scalar_math.cc over vectors: the same operations in the same order per lane.
// The comments stand there.

#include <limits>

#include "kernels/simd-inl.h"

#if defined(TRUNKLINE_KERNELS_SIMD_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRUNKLINE_KERNELS_SIMD_MATH_INL_H_
#undef TRUNKLINE_KERNELS_SIMD_MATH_INL_H_
#else
#define TRUNKLINE_KERNELS_SIMD_MATH_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace trunkline::kernels {
namespace HWY_NAMESPACE {

template <class D>
HWY_INLINE hn::Vec<D> NanIfNan(D d, hn::Vec<D> x, hn::Vec<D> value) {
  return hn::IfThenElse(
      hn::IsNaN(x), hn::Set(d, std::numeric_limits<float>::quiet_NaN()), value);
}

template <class D>
HWY_INLINE hn::Vec<D> VecExp(D d, hn::Vec<D> x_in) {
  const hn::RebindToSigned<D> di;
  auto x = x_in;
  const auto low = hn::Set(d, -104.0f);
  const auto high = hn::Set(d, 89.0f);
  x = hn::IfThenElse(hn::Lt(x, low), low, x);
  x = hn::IfThenElse(hn::Gt(x, high), high, x);
  const auto shift = hn::Set(d, 12582912.0f);
  const auto shifted = Fma(x, hn::Set(d, 1.44269504f), shift);
  const auto n = hn::Sub(shifted, shift);
  const auto exponent =
      hn::Sub(hn::BitCast(di, shifted), hn::Set(di, 0x4b400000));
  const auto ln2_low = hn::Set(d, -0x1.0bfbe8p-15f);
  const auto r_high = Fma(n, hn::Set(d, -0x1.62ep-1f), x);
  const auto r = Fma(n, ln2_low, r_high);
  const auto r_low = Fma(n, ln2_low, hn::Sub(r_high, r));
  auto q = Fma(r, hn::Set(d, 0x1.6a23dp-10f), hn::Set(d, 0x1.123a2p-7f));
  q = Fma(r, q, hn::Set(d, 0x1.5558f2p-5f));
  q = Fma(r, q, hn::Set(d, 0x1.555492p-3f));
  q = Fma(r, q, hn::Set(d, 0x1.fffffcp-2f));
  const auto one = hn::Set(d, 1.0f);
  const auto head = hn::Add(one, r);
  const auto lost = hn::Add(hn::Sub(one, head), r);
  const auto p = hn::Add(head, Fma(hn::Mul(r, r), q, hn::Add(lost, r_low)));
  const auto half = hn::ShiftRight<1>(exponent);
  const auto bias = hn::Set(di, 127);
  const auto first = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(half, bias)));
  const auto second =
      hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::Sub(exponent, half), bias)));
  return NanIfNan(d, x_in, hn::Mul(hn::Mul(p, first), second));
}

template <class D>
HWY_INLINE hn::Vec<D> VecLogOfParts(D d, hn::Vec<D> k, hn::Vec<D> f,
                                    hn::Vec<D> c) {
  const auto s = hn::Div(f, hn::Add(hn::Set(d, 2.0f), f));
  const auto z = hn::Mul(s, s);
  auto r = Fma(z, hn::Set(d, 0x1.c71c72p-3f), hn::Set(d, 0x1.24924ap-2f));
  r = Fma(z, r, hn::Set(d, 0x1.99999ap-2f));
  r = Fma(z, r, hn::Set(d, 0x1.555556p-1f));
  r = hn::Mul(r, z);
  const auto half_square = hn::Mul(hn::Mul(hn::Set(d, 0.5f), f), f);
  const auto t = hn::Sub(
      Fma(s, hn::Add(half_square, r), Fma(k, hn::Set(d, 0x1.0bfbe8p-15f), c)),
      half_square);
  return Fma(k, hn::Set(d, 0x1.62ep-1f), hn::Add(t, f));
}

// Exponent and mantissa - 1 of a positive normal value.
template <class D>
HWY_INLINE void SplitMantissa(D d, hn::Vec<D> x, hn::Vec<D>& k, hn::Vec<D>& f) {
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const auto bits =
      hn::Add(hn::BitCast(du, x), hn::Set(du, 0x3f800000u - 0x3f3504f3u));
  k = hn::ConvertTo(
      d, hn::Sub(hn::BitCast(di, hn::ShiftRight<23>(bits)), hn::Set(di, 127)));
  const auto m = hn::BitCast(d, hn::Add(hn::And(bits, hn::Set(du, 0x007fffffu)),
                                        hn::Set(du, 0x3f3504f3u)));
  f = hn::Sub(m, hn::Set(d, 1.0f));
}

// NaN outside x >= 0, and infinity at infinity.
template <class D>
HWY_INLINE hn::Vec<D> LogDomain(D d, hn::Vec<D> x, hn::Vec<D> value) {
  const auto infinity = hn::Set(d, std::numeric_limits<float>::infinity());
  value = hn::IfThenElse(hn::Eq(x, infinity), infinity, value);
  return hn::IfThenElse(hn::Ge(x, hn::Zero(d)), value,
                        hn::Set(d, std::numeric_limits<float>::quiet_NaN()));
}

template <class D>
HWY_INLINE hn::Vec<D> VecLog(D d, hn::Vec<D> x) {
  const auto subnormal = hn::Lt(x, hn::Set(d, 0x1p-126f));
  const auto scaled =
      hn::IfThenElse(subnormal, hn::Mul(x, hn::Set(d, 0x1p25f)), x);
  auto k = hn::Zero(d);
  auto f = hn::Zero(d);
  SplitMantissa(d, scaled, k, f);
  k = hn::IfThenElse(subnormal, hn::Sub(k, hn::Set(d, 25.0f)), k);
  auto value = VecLogOfParts(d, k, f, hn::Zero(d));
  value = hn::IfThenElse(hn::Eq(x, hn::Zero(d)),
                         hn::Set(d, -std::numeric_limits<float>::infinity()),
                         value);
  return LogDomain(d, x, value);
}

template <class D>
HWY_INLINE hn::Vec<D> VecLog1p(D d, hn::Vec<D> x) {
  const auto one = hn::Set(d, 1.0f);
  const auto u = hn::Add(one, x);
  auto k = hn::Zero(d);
  auto f = hn::Zero(d);
  SplitMantissa(d, u, k, f);
  const auto lost =
      hn::Div(hn::IfThenElse(hn::Ge(x, one), hn::Sub(one, hn::Sub(u, x)),
                             hn::Sub(x, hn::Sub(u, one))),
              u);
  const auto near = hn::Eq(k, hn::Zero(d));
  const auto value = VecLogOfParts(d, k, hn::IfThenElse(near, x, f),
                                   hn::IfThenElse(near, hn::Zero(d), lost));
  return LogDomain(d, x, value);
}

template <class D>
HWY_INLINE hn::Vec<D> VecSoftplus(D d, hn::Vec<D> x) {
  return hn::IfThenElse(hn::Gt(x, hn::Set(d, 20.0f)), x,
                        VecLog1p(d, VecExp(d, x)));
}

template <class D>
HWY_INLINE hn::Vec<D> VecSigmoid(D d, hn::Vec<D> x) {
  const auto one = hn::Set(d, 1.0f);
  return NanIfNan(d, x, hn::Div(one, hn::Add(one, VecExp(d, hn::Neg(x)))));
}

template <class D>
HWY_INLINE hn::Vec<D> VecSilu(D d, hn::Vec<D> x) {
  const auto denominator = hn::Add(hn::Set(d, 1.0f), VecExp(d, hn::Neg(x)));
  const auto at_limit =
      hn::Eq(x, hn::Set(d, -std::numeric_limits<float>::infinity()));
  return NanIfNan(
      d, x,
      hn::IfThenElse(at_limit, hn::Set(d, -0.0f), hn::Div(x, denominator)));
}

}  // namespace HWY_NAMESPACE
}  // namespace trunkline::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target toggle
