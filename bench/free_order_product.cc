#include "bench/free_order_product.h"

#include <algorithm>
#include <array>
#include <utility>

#include "common/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/free_order_product.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/register_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace trunkline::kernels {
namespace HWY_NAMESPACE {

constexpr int64_t kAheadBytes = 4096;

// One unit of one panel for R rows, S accumulators an output.
template <size_t R, size_t S>
void FreeOrderUnit(const float* x, int64_t k_total, const uint16_t* unit,
                   float* low_out, float* high_out, int64_t out_stride) {
  const FullTag d;
  Vec low[R * S];
  Vec high[R * S];
  Unroll<R * S>([&](auto i) TRUNKLINE_INLINE_LAMBDA {
    low[i] = hn::Zero(d);
    high[i] = hn::Zero(d);
  });
  int64_t k = 0;
  for (; k + static_cast<int64_t>(S) <= k_total; k += S) {
    Unroll<S>([&](auto s) TRUNKLINE_INLINE_LAMBDA {
      const uint16_t* group = unit + (k + static_cast<int64_t>(s)) * kPanel;
      hwy::Prefetch(reinterpret_cast<const std::byte*>(group) + kAheadBytes);
      Vec w_low, w_high;
      Bf16Weights::Load(group, w_low, w_high);
      Unroll<R>([&](auto r) TRUNKLINE_INLINE_LAMBDA {
        const Vec value = hn::Set(
            d,
            x[static_cast<int64_t>(r) * k_total + k + static_cast<int64_t>(s)]);
        low[r * S + s] = Fma(value, w_low, low[r * S + s]);
        high[r * S + s] = Fma(value, w_high, high[r * S + s]);
      });
    });
  }
  for (; k < k_total; ++k) {
    Vec w_low, w_high;
    Bf16Weights::Load(unit + k * kPanel, w_low, w_high);
    Unroll<R>([&](auto r) TRUNKLINE_INLINE_LAMBDA {
      const Vec value = hn::Set(d, x[static_cast<int64_t>(r) * k_total + k]);
      low[r * S] = Fma(value, w_low, low[r * S]);
      high[r * S] = Fma(value, w_high, high[r * S]);
    });
  }
  Unroll<R>([&](auto r) TRUNKLINE_INLINE_LAMBDA {
    for (size_t s = 1; s < S; ++s) {
      low[r * S] = hn::Add(low[r * S], low[r * S + s]);
      high[r * S] = hn::Add(high[r * S], high[r * S + s]);
    }
    hn::StoreU(low[r * S], d, low_out + static_cast<int64_t>(r) * out_stride);
    hn::StoreU(high[r * S], d, high_out + static_cast<int64_t>(r) * out_stride);
  });
}

// As many accumulators an output as the registers hold, at most four.
template <size_t R>
constexpr size_t Split() {
  return std::clamp<size_t>(kRegisters * 3 / 8 / R, 1, 4);
}

template <size_t R>
void FreeOrderPanel(const float* x, const PackedMatrix& w, int64_t panel,
                    float* y) {
  HWY_ALIGN float out[R * kPanel];
  const auto* words = reinterpret_cast<const uint16_t*>(w.panel(panel));
  for (size_t u = 0; u < kUnitsPerPanel; ++u) {
    FreeOrderUnit<R, Split<R>()>(x, w.k(), words + u * Bf16Weights::kUnitStep,
                                 out + u * kLanes,
                                 out + kHalfPanel + u * kLanes, kPanel);
  }
  const int64_t begin = panel * kPanel;
  const int64_t count = std::min(kPanel, w.n() - begin);
  for (size_t r = 0; r < R; ++r) {
    std::copy_n(out + r * kPanel, count,
                y + static_cast<int64_t>(r) * w.n() + begin);
  }
}

template <size_t... R>
void FreeOrderRows(std::index_sequence<R...>, const float* x, int64_t rows,
                   const PackedMatrix& w, int64_t panel, float* y) {
  using Fn = void (*)(const float*, const PackedMatrix&, int64_t, float*);
  static constexpr Fn kTable[] = {&FreeOrderPanel<R + 1>...};
  kTable[rows - 1](x, w, panel, y);
}

void FreeOrderOnTarget(const float* x, int64_t rows, const PackedMatrix& w,
                       int64_t panel, float* y) {
  FreeOrderRows(std::make_index_sequence<8>(), x, rows, w, panel, y);
}

}  // namespace HWY_NAMESPACE
}  // namespace trunkline::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trunkline::kernels {
HWY_EXPORT(FreeOrderOnTarget);

static void FreeOrder(const float* x, int64_t rows, const PackedMatrix& w,
                      int64_t panel, float* y) {
  HWY_DYNAMIC_DISPATCH(FreeOrderOnTarget)(x, rows, w, panel, y);
}
}  // namespace trunkline::kernels

namespace trunkline::bench {

void FreeOrderProduct(ThreadPool& pool, const float* x, int64_t rows,
                      const kernels::PackedMatrix& w, float* y) {
  TL_CHECK(rows >= 1 && rows <= 8 && w.dtype() == DType::kBF16);
  const int64_t tasks = std::min<int64_t>(w.panels(), pool.threads() * 8);
  pool.ParallelFor(tasks, [&](int64_t task, int) {
    for (int64_t p = task * w.panels() / tasks;
         p < (task + 1) * w.panels() / tasks; ++p) {
      kernels::FreeOrder(x, rows, w, p, y);
    }
  });
}

}  // namespace trunkline::bench
#endif  // HWY_ONCE
