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

// Rows of one register tile: with these, a target of 32 registers still takes
// two panels side by side, and more rows have more from being interleaved.
constexpr size_t kDirectRows = 6;

// Panels side by side: one stream alone does not fill the memory's bandwidth,
// and one panel of one or two rows alone does not hide the latency of the fused
// multiply-add.
constexpr size_t kManyPanels = 4;  // for at most kFewRows rows
constexpr size_t kFewRows = 2;
constexpr size_t kSomePanels = 2;

// How far ahead of the loads each panel is fetched: latency times bandwidth of
// one core, with room.
constexpr int64_t kPrefetchBytes = 2048;

// Inputs between two visits of the accumulators when a panel takes several
// passes, on a target with few registers: the block stays in the first level
// cache.
constexpr int64_t kInputBlock = 128;

// Units of one register tile of R rows over kPanels panels: as many as the
// registers hold, and a divisor of all.
template <size_t R, size_t kPanels>
constexpr size_t UnitsOfTile() {
  size_t units = std::max<size_t>(kAccumulatorPairs / R, 1);
  units = std::min(units, kPanels * kUnitsPerPanel);
  while (kPanels * kUnitsPerPanel % units != 0) --units;
  return std::min<size_t>(units, 4);
}

// The inputs [begin, begin + count) of kPanels panels for the rows of one
// register tile.
template <class Weights, size_t R, size_t kPanels>
void TileTimesPanels(const float* const* rows, const PackedMatrix& w,
                     int64_t panel, int64_t begin, int64_t count, float* acc) {
  constexpr size_t kUnits = UnitsOfTile<R, kPanels>();
  constexpr size_t kPasses = kPanels * kUnitsPerPanel / kUnits;
  constexpr int64_t kAccStride = static_cast<int64_t>(kPanels) * kPanel;
  using Word = typename Weights::Word;
  constexpr int64_t kGroupBytes = kPanel * static_cast<int64_t>(sizeof(Word));
  const float* x[R];
  for (size_t r = 0; r < R; ++r) x[r] = rows[r] + begin;
  const auto value = [&](auto r, int64_t k)
                         TRUNKLINE_INLINE_LAMBDA { return x[r][k]; };
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
    const auto prefetch = [&](int64_t k) TRUNKLINE_INLINE_LAMBDA {
      Unroll<kUnits>([&](auto u) TRUNKLINE_INLINE_LAMBDA {
        // The units of one panel share its cache lines.
        if constexpr (u % kUnitsPerPanel == 0) {
          const auto* ahead = reinterpret_cast<const std::byte*>(unit[u]) +
                              kPrefetchBytes + k * kGroupBytes;
          hwy::Prefetch(ahead);
          if constexpr (sizeof(Word) == 4) hwy::Prefetch(ahead + 64);
        }
      });
    };
    AccumulateTile<Weights, R, kUnits>(unit, value, count, acc, kAccStride,
                                       acc_unit, prefetch);
  }
}

using TileFn = void (*)(const float* const*, const PackedMatrix&, int64_t,
                        int64_t, int64_t, float*);
template <class Weights, size_t kPanels, size_t... R>
TileFn TileOf(std::index_sequence<R...>, int64_t rows) {
  static constexpr TileFn kTable[] = {
      &TileTimesPanels<Weights, R + 1, kPanels>...};
  return kTable[rows - 1];
}

// All rows times kPanels panels from `panel` on.
template <class Weights, size_t kPanels>
void RowsTimesPanels(const float* const* rows, int64_t row_count,
                     const PackedMatrix& w, int64_t panel,
                     const ProductOutput& output) {
  constexpr size_t kRows = kPanels == kManyPanels ? kFewRows : kDirectRows;
  constexpr auto kSequence = std::make_index_sequence<kRows>();
  constexpr int64_t kAccStride = static_cast<int64_t>(kPanels) * kPanel;
  HWY_ALIGN float acc[kRows * kPanels * kPanel];
  std::fill(acc, acc + row_count * kAccStride, 0.0f);
  const int64_t block = kRegisters == 32 ? w.k() : kInputBlock;
  for (int64_t begin = 0; begin < w.k(); begin += block) {
    const int64_t count = std::min(block, w.k() - begin);
    TileOf<Weights, kPanels>(kSequence, row_count)(rows, w, panel, begin, count,
                                                   acc);
  }
  const int64_t n_begin = panel * kPanel;
  const int64_t n_count = std::min(kAccStride, w.n() - n_begin);
  for (int64_t r = 0; r < row_count; ++r) {
    FinishRow(acc + r * kAccStride, n_count, output,
              output.y + r * output.y_stride + n_begin);
  }
}

template <class Weights>
void RowsTimesRange(const float* const* rows, int64_t row_count,
                    const PackedMatrix& w, int64_t panel_begin,
                    int64_t panel_end, const ProductOutput& output) {
  constexpr auto kMany = static_cast<int64_t>(kManyPanels);
  constexpr auto kSome = static_cast<int64_t>(kSomePanels);
  int64_t p = panel_begin;
  if (row_count <= static_cast<int64_t>(kFewRows)) {
    for (; p + kMany <= panel_end; p += kMany) {
      RowsTimesPanels<Weights, kManyPanels>(rows, row_count, w, p, output);
    }
  }
  for (; p + kSome <= panel_end; p += kSome) {
    RowsTimesPanels<Weights, kSomePanels>(rows, row_count, w, p, output);
  }
  for (; p < panel_end; ++p) {
    RowsTimesPanels<Weights, 1>(rows, row_count, w, p, output);
  }
}

void DirectProductOnTarget(const RowSource& source, const PackedMatrix& w,
                           int64_t panel_begin, int64_t panel_end,
                           const ProductOutput& output) {
  const float* rows[kDirectRows];
  for (int64_t m = 0; m < source.rows; ++m) rows[m] = source.row(m);
  switch (w.dtype()) {
    case DType::kF32:
      return RowsTimesRange<F32Weights>(rows, source.rows, w, panel_begin,
                                        panel_end, output);
    case DType::kF16:
      return RowsTimesRange<F16Weights>(rows, source.rows, w, panel_begin,
                                        panel_end, output);
    case DType::kBF16:
      return RowsTimesRange<Bf16Weights>(rows, source.rows, w, panel_begin,
                                         panel_end, output);
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
