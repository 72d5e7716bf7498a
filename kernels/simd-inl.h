// What every SIMD kernel shares. Compiled once per Highway target: no include
// guard but the toggle. Vectors here have at most 16 lanes, so that contract
// 2's 16 partial sums are 1, 2, 4 or 16 vectors.

#include <cmath>
#include <cstdint>
#include <utility>

#include "common/check.h"
#include "hwy/highway.h"
#include "kernels/kernel_context.h"

#if defined(TRUNKLINE_KERNELS_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRUNKLINE_KERNELS_SIMD_INL_H_
#undef TRUNKLINE_KERNELS_SIMD_INL_H_
#else
#define TRUNKLINE_KERNELS_SIMD_INL_H_
#endif

// For lambdas inside SIMD code: compiled for the target and always inlined, so
// that vectors they capture stay in registers.
#undef TRUNKLINE_INLINE_LAMBDA
#define TRUNKLINE_INLINE_LAMBDA HWY_ATTR __attribute__((always_inline))

HWY_BEFORE_NAMESPACE();
namespace trunkline::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FullTag = hn::CappedTag<float, 16>;
using Vec = hn::Vec<FullTag>;
using OneTag = hn::FixedTag<float, 1>;

// a * b + c with one rounding (contract 6).
template <class V>
HWY_INLINE V Fma(V a, V b, V c) {
#if HWY_NATIVE_FMA
  return hn::MulAdd(a, b, c);
#elif HWY_TARGET == HWY_SCALAR
  return V(std::fma(a.raw, b.raw, c.raw));
#elif HWY_TARGET == HWY_EMU128
  V r = c;
  for (size_t i = 0; i < sizeof(r.raw) / sizeof(r.raw[0]); ++i) {
    r.raw[i] = std::fma(a.raw[i], b.raw[i], c.raw[i]);
  }
  return r;
#else
#error "a target without fused multiply-add breaks the numerics contract"
#endif
}

// To the nearest bf16, ties to even; a NaN stays one: RoundToBf16 per lane.
template <class D>
HWY_INLINE hn::Vec<D> RoundBf16(D d, hn::Vec<D> v) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffu)));
  const auto quiet = hn::Or(bits, hn::Set(du, 0x00400000u));
  const auto is_nan = hn::RebindMask(du, hn::IsNaN(v));
  return hn::BitCast(d, hn::And(hn::IfThenElse(is_nan, quiet, rounded),
                                hn::Set(du, 0xffff0000u)));
}

template <class D>
HWY_INLINE hn::Vec<D> RoundTo(D d, Activation out, hn::Vec<D> v) {
  return out == Activation::kBf16 ? RoundBf16(d, v) : v;
}

template <class D>
HWY_INLINE hn::Vec<D> LoadBf16(D d, const uint16_t* p) {
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<uint16_t, D> d16;
  return hn::BitCast(d,
                     hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(d16, p))));
}

// The upper halves of values that are bf16 already.
template <class D>
HWY_INLINE void StoreBf16([[maybe_unused]] D d, hn::Vec<D> v, uint16_t* p) {
  const hn::RebindToSigned<D> di;
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<uint16_t, D> d16;
  const auto upper = hn::ShiftRight<16>(hn::BitCast(du, v));
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, upper)), d16, p);
}

// relu exactly (a NaN stays), then the square, rounded.
template <class D>
HWY_INLINE hn::Vec<D> ReluSquare(D d, Activation out, hn::Vec<D> v) {
  const auto zero = hn::Zero(d);
  v = hn::IfThenElse(hn::Lt(v, zero), zero, v);
  return RoundTo(d, out, hn::Mul(v, v));
}

// body(d, i) over 0..n-1: whole vectors, then single lanes. Only for
// operations that never look across lanes, so that both give the same bits.
template <class Body>
HWY_INLINE void ForLanes(int64_t n, const Body& body) {
  const FullTag d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) body(d, i);
  for (; i < n; ++i) body(OneTag(), i);
}

// Contract 2's tree over 16 partial sums.
HWY_INLINE float FoldPartials(float* p) {
  for (int j = 0; j < 8; ++j) p[j] += p[j + 8];
  for (int j = 0; j < 4; ++j) p[j] += p[j + 4];
  for (int j = 0; j < 2; ++j) p[j] += p[j + 2];
  return p[0] + p[1];
}

// Contract 2: sum over i of term(d, i).
template <class Term>
HWY_INLINE float SumInContractOrder(int64_t n, const Term& term) {
  const FullTag d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  HWY_ALIGN float partial[16] = {};
  int64_t i = 0;
  if (lanes == 16) {
    auto sum = hn::Zero(d);
    for (; i + 16 <= n; i += 16) sum = hn::Add(sum, term(d, i));
    hn::Store(sum, d, partial);
  } else {
    for (; i + 16 <= n; i += 16) {
      for (int64_t j = 0; j < 16; j += lanes) {
        hn::Store(hn::Add(hn::Load(d, partial + j), term(d, i + j)), d,
                  partial + j);
      }
    }
  }
  for (int64_t j = 0; i < n; ++i, ++j) {
    partial[j] += hn::GetLane(term(OneTag(), i));
  }
  return FoldPartials(partial);
}

// f(integral_constant 0), f(integral_constant 1), ...: unrolled before
// register allocation, so that arrays of vectors indexed by it stay in
// registers.
template <size_t... I, class F>
HWY_INLINE void UnrollOver(std::index_sequence<I...>, const F& f) {
  (f(std::integral_constant<size_t, I>()), ...);
}
template <size_t kCount, class F>
HWY_INLINE void Unroll(const F& f) {
  UnrollOver(std::make_index_sequence<kCount>(), f);
}

}  // namespace HWY_NAMESPACE
}  // namespace trunkline::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target toggle
