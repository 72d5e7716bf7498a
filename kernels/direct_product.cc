// Products of few rows: the panels stream past once, several side by side, so
// that enough independent accumulators hide the latency of the fused
// multiply-add and enough streams are open to fill the memory's bandwidth.

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "kernels/panel_product.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/direct_product.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/register_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace trunkline::kernels {
namespace HWY_NAMESPACE {

// More rows than this would leave no register for the weights.
constexpr size_t kDirectRows = kRegisters == 32 ? 8 : 6;

// How far ahead of the loads the panels are fetched.
constexpr int64_t kPrefetchBytes = 2048;

// Units of one register tile of R rows: a whole number of panels, or a part of
// one that divides it.
template <size_t R>
constexpr size_t UnitsOfTile() {
  const size_t fit =
      std::min<size_t>(std::max<size_t>(kAccumulatorPairs / R, 1), 4);
  if (fit >= kUnitsPerPanel) return fit / kUnitsPerPanel * kUnitsPerPanel;
  size_t units = fit;
  while (kUnitsPerPanel % units != 0) --units;
  return units;
}

// Inputs between two visits of the accumulators when a panel takes several
// register tiles: its block then stays in the first level cache.
constexpr int64_t kInputBlock = 128;

// R rows, kPanels panels from `panel` on.
template <class Weights, size_t R, size_t kPanels>
HWY_INLINE void RowsTimesPanels(const float* const* rows, const PackedMatrix& w,
                                int64_t panel, const ProductOutput& output) {
  constexpr size_t kUnits =
      std::min(UnitsOfTile<R>(), kPanels * kUnitsPerPanel);
  constexpr size_t kPasses = kPanels * kUnitsPerPanel / kUnits;
  constexpr int64_t kAccStride = static_cast<int64_t>(kPanels) * kPanel;
  using Word = typename Weights::Word;
  HWY_ALIGN float acc[R * kPanels * kPanel] = {};
  const int64_t k_total = w.k();
  const int64_t block = kPasses == 1 ? k_total : kInputBlock;
  const float* x[R];
  for (size_t r = 0; r < R; ++r) x[r] = rows[r];
  for (int64_t begin = 0; begin < k_total; begin += block) {
    const int64_t count = std::min(block, k_total - begin);
    for (size_t pass = 0; pass < kPasses; ++pass) {
      const Word* unit[kUnits];
      int64_t acc_unit[kUnits];
      for (size_t u = 0; u < kUnits; ++u) {
        const size_t index = pass * kUnits + u;
        const auto p = static_cast<int64_t>(index / kUnitsPerPanel);
        const auto part = static_cast<int64_t>(index % kUnitsPerPanel);
        unit[u] = reinterpret_cast<const Word*>(w.panel(panel + p)) +
                  begin * kPanel + part * Weights::kUnitStep;
        acc_unit[u] = p * kPanel + part * static_cast<int64_t>(kLanes);
      }
      const auto value = [&](auto r, int64_t k) TRUNKLINE_INLINE_LAMBDA {
        return x[r][begin + k];
      };
      const auto prefetch = [&](int64_t k) TRUNKLINE_INLINE_LAMBDA {
        if (kPasses > 1 && pass > 0) return;
        Unroll<kUnits>([&](auto u) TRUNKLINE_INLINE_LAMBDA {
          // The units of one panel share its cache lines.
          if constexpr (u % kUnitsPerPanel == 0) {
            const auto* ahead =
                reinterpret_cast<const std::byte*>(unit[u] + k * kPanel) +
                kPrefetchBytes;
            hwy::Prefetch(ahead);
            if constexpr (sizeof(Word) == 4) hwy::Prefetch(ahead + 64);
          }
        });
      };
      AccumulateTile<Weights, R, kUnits>(unit, value, count, acc, kAccStride,
                                         acc_unit, prefetch);
    }
  }
  const int64_t n_begin = panel * kPanel;
  const int64_t n_count = std::min(kAccStride, w.n() - n_begin);
  for (size_t r = 0; r < R; ++r) {
    FinishRow(acc + static_cast<int64_t>(r) * kAccStride, n_count, output,
              output.y + static_cast<int64_t>(r) * output.y_stride + n_begin);
  }
}

template <class Weights, size_t R>
void RowsTimesRange(const float* const* rows, const PackedMatrix& w,
                    int64_t panel_begin, int64_t panel_end,
                    const ProductOutput& output) {
  constexpr size_t kPanels =
      std::max<size_t>(UnitsOfTile<R>() / kUnitsPerPanel, 1);
  int64_t p = panel_begin;
  for (; p + static_cast<int64_t>(kPanels) <= panel_end;
       p += static_cast<int64_t>(kPanels)) {
    RowsTimesPanels<Weights, R, kPanels>(rows, w, p, output);
  }
  if constexpr (kPanels > 1) {
    for (; p < panel_end; ++p) {
      RowsTimesPanels<Weights, R, 1>(rows, w, p, output);
    }
  }
}

template <class Weights, size_t... R>
void ForRowCount(std::index_sequence<R...>, const float* const* rows,
                 int64_t row_count, const PackedMatrix& w, int64_t panel_begin,
                 int64_t panel_end, const ProductOutput& output) {
  using Fn = void (*)(const float* const*, const PackedMatrix&, int64_t,
                      int64_t, const ProductOutput&);
  static constexpr Fn kTable[] = {&RowsTimesRange<Weights, R + 1>...};
  kTable[row_count - 1](rows, w, panel_begin, panel_end, output);
}

void DirectProductOnTarget(const RowSource& source, const PackedMatrix& w,
                           int64_t panel_begin, int64_t panel_end,
                           const ProductOutput& output) {
  const float* rows[kDirectRows];
  for (int64_t m = 0; m < source.rows; ++m) rows[m] = source.row(m);
  const auto sequence = std::make_index_sequence<kDirectRows>();
  switch (w.dtype()) {
    case DType::kF32:
      return ForRowCount<F32Weights>(sequence, rows, source.rows, w,
                                     panel_begin, panel_end, output);
    case DType::kF16:
      return ForRowCount<F16Weights>(sequence, rows, source.rows, w,
                                     panel_begin, panel_end, output);
    case DType::kBF16:
      return ForRowCount<Bf16Weights>(sequence, rows, source.rows, w,
                                      panel_begin, panel_end, output);
  }
}

int64_t DirectRowsOnTarget() { return kDirectRows; }

}  // namespace HWY_NAMESPACE
}  // namespace trunkline::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trunkline::kernels {

HWY_EXPORT(DirectProductOnTarget);
HWY_EXPORT(DirectRowsOnTarget);

int64_t DirectRows() { return HWY_DYNAMIC_DISPATCH(DirectRowsOnTarget)(); }

void DirectProduct(const RowSource& source, const PackedMatrix& w,
                   int64_t panel_begin, int64_t panel_end,
                   const ProductOutput& output) {
  if (source.rows == 0 || panel_begin >= panel_end) return;
  TL_DCHECK(source.rows <= DirectRows());
  HWY_DYNAMIC_DISPATCH(DirectProductOnTarget)
  (source, w, panel_begin, panel_end, output);
}

}  // namespace trunkline::kernels
#endif  // HWY_ONCE
