// The register tile of a matrix product: R rows times U units, a unit being two
// vectors of outputs (i, i+1, ... and 16+i, 17+i, ...) of one panel. Every
// accumulator takes its products in increasing k (contract 1); it may live in
// memory between two blocks of inputs, since fp32 stores are exact.

#include "common/float16.h"
#include "kernels/packed_matrix.h"
#include "kernels/panel_product.h"
#include "kernels/simd-inl.h"

#if defined(TRUNKLINE_KERNELS_REGISTER_TILE_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef TRUNKLINE_KERNELS_REGISTER_TILE_INL_H_
#undef TRUNKLINE_KERNELS_REGISTER_TILE_INL_H_
#else
#define TRUNKLINE_KERNELS_REGISTER_TILE_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace trunkline::kernels {
namespace HWY_NAMESPACE {

constexpr int64_t kPanel = PackedMatrix::kPanel;
constexpr int64_t kHalfPanel = kPanel / 2;
constexpr size_t kLanes = hn::MaxLanes(FullTag());
static_assert(kLanes <= kHalfPanel, "a unit is two vectors of one panel");
constexpr size_t kUnitsPerPanel = kHalfPanel / kLanes;

// Vector registers of the target.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
constexpr size_t kRegisters = 32;
#else
constexpr size_t kRegisters = 16;
#endif
// Accumulators take at most three quarters of them.
constexpr size_t kAccumulatorPairs = kRegisters * 3 / 8;

// Widening loads of unit `unit` of input k: two vectors of consecutive outputs.
struct F32Weights {
  static constexpr DType kType = DType::kF32;
  using Word = float;
  static HWY_INLINE void Load(const float* group, Vec& low, Vec& high) {
    const FullTag d;
    low = hn::LoadU(d, group);
    high = hn::LoadU(d, group + kHalfPanel);
  }
  static constexpr int64_t kUnitStep = kLanes;
};

struct F16Weights {
  static constexpr DType kType = DType::kF16;
  using Word = uint16_t;
  static HWY_INLINE void Load(const uint16_t* group, Vec& low, Vec& high) {
    low = Widen(group);
    high = Widen(group + kHalfPanel);
  }
  static constexpr int64_t kUnitStep = kLanes;

  static HWY_INLINE Vec Widen(const uint16_t* from) {
    const FullTag d;
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
    // The emulated conversion does not know infinity and NaN.
    HWY_ALIGN float wide[kLanes];
    for (size_t i = 0; i < kLanes; ++i) wide[i] = HalfToFloat(from[i]);
    return hn::Load(d, wide);
#else
    const hn::Rebind<hwy::float16_t, FullTag> dh;
    return hn::PromoteTo(
        d, hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(from)));
#endif
  }
};

struct Bf16Weights {
  static constexpr DType kType = DType::kBF16;
  using Word = uint16_t;
  static HWY_INLINE void Load(const uint16_t* group, Vec& low, Vec& high) {
    const FullTag d;
    const hn::RebindToUnsigned<FullTag> du;
    // A pair (output i, output i + 16) is one 32-bit lane. The panel is aligned
    // to its groups.
    const auto pairs = hn::LoadU(du, reinterpret_cast<const uint32_t*>(group));
    low = hn::BitCast(d, hn::ShiftLeft<16>(pairs));
    high = hn::BitCast(d, hn::And(pairs, hn::Set(du, 0xffff0000u)));
  }
  static constexpr int64_t kUnitStep = 2 * kLanes;
};

// For tiles that do not keep their widened weights.
struct KeepNothing {
  HWY_INLINE void operator()(size_t, int64_t, Vec, Vec) const {}
};

// acc: rows of `acc_stride` floats; unit u accumulates at acc_unit[u] and
// acc_unit[u] + 16 of each. x(r, k) gives the value of row r at input k.
// hint(k) runs once per input: a place for prefetches. keep(u, k, low, high)
// sees each unit's widened weights.
template <class Weights, size_t R, size_t U, class X, class Hint,
          class Keep = KeepNothing>
HWY_INLINE void AccumulateTile(
    const typename Weights::Word* const* HWY_RESTRICT unit, const X& x,
    int64_t k_count, float* HWY_RESTRICT acc, int64_t acc_stride,
    const int64_t* acc_unit, const Hint& hint, const Keep& keep = Keep()) {
  const FullTag d;
  Vec low[R * U];
  Vec high[R * U];
  const typename Weights::Word* w[U];
  Unroll<U>([&](auto u) TRUNKLINE_INLINE_LAMBDA {
    w[u] = unit[u];
    Unroll<R>([&](auto r) TRUNKLINE_INLINE_LAMBDA {
      const float* place = acc + r * acc_stride + acc_unit[u];
      low[r * U + u] = hn::LoadU(d, place);
      high[r * U + u] = hn::LoadU(d, place + kHalfPanel);
    });
  });
  for (int64_t k = 0; k < k_count; ++k) {
    hint(k);
    Unroll<U>([&](auto u) TRUNKLINE_INLINE_LAMBDA {
      Vec w_low, w_high;
      Weights::Load(w[u] + k * kPanel, w_low, w_high);
      keep(u, k, w_low, w_high);
      Unroll<R>([&](auto r) TRUNKLINE_INLINE_LAMBDA {
        const Vec value = hn::Set(d, x(r, k));
        low[r * U + u] = Fma(value, w_low, low[r * U + u]);
        high[r * U + u] = Fma(value, w_high, high[r * U + u]);
      });
    });
  }
  Unroll<U>([&](auto u) TRUNKLINE_INLINE_LAMBDA {
    Unroll<R>([&](auto r) TRUNKLINE_INLINE_LAMBDA {
      float* place = acc + r * acc_stride + acc_unit[u];
      hn::StoreU(low[r * U + u], d, place);
      hn::StoreU(high[r * U + u], d, place + kHalfPanel);
    });
  });
}

// Rounds the finished accumulators of one row and `count` outputs into y.
HWY_INLINE void FinishRow(const float* acc, int64_t count,
                          const ProductOutput& output, float* y) {
  ForLanes(count, [&](auto d, int64_t i) TRUNKLINE_INLINE_LAMBDA {
    auto v = RoundTo(d, output.out, hn::LoadU(d, acc + i));
    if (output.relu_square) v = ReluSquare(d, output.out, v);
    hn::StoreU(v, d, y + i);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace trunkline::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target toggle
