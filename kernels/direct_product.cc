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
// two panels side by side.
constexpr size_t kTileRows = 6;
// Rows for which widening in registers, once for each row tile, still costs
// less than a detour through a widened block.
constexpr size_t kDirectRows = 24;

// How far ahead of the loads memory is fetched, over all panels side by side:
// latency times bandwidth of one core, with room.
constexpr int64_t kPrefetchBytes = 8192;

// Inputs between two visits of the accumulators when a panel is used by several
// register tiles: the block, the one fetched meanwhile and the rows' part stay
// in the first level cache.
constexpr int64_t kInputBlock = 128;
// Panels that several row tiles take side by side. One stream alone does not
// fill the memory's bandwidth.
constexpr size_t kSidePanels = 2;

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

// Panels that R rows take side by side.
template <size_t R>
constexpr size_t PanelsOfTile() {
  return std::max<size_t>(UnitsOfTile<R>() / kUnitsPerPanel, 1);
}

// What a register tile fetches while it runs: for each input, `step` bytes
// further into every panel, from `ahead` bytes beyond the tile's own block on.
struct Fetch {
  int64_t ahead;
  int64_t step;
};

// The inputs [begin, begin + count) of kPanels panels for the rows of one
// register tile.
template <class Weights, size_t R, size_t kPanels>
HWY_INLINE void TileTimesPanels(const float* const* rows, const PackedMatrix& w,
                                int64_t panel, int64_t begin, int64_t count,
                                Fetch fetch, float* acc) {
  constexpr size_t kUnits =
      std::min(UnitsOfTile<R>(), kPanels * kUnitsPerPanel);
  constexpr size_t kPasses = kPanels * kUnitsPerPanel / kUnits;
  constexpr int64_t kAccStride = static_cast<int64_t>(kPanels) * kPanel;
  using Word = typename Weights::Word;
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
                              fetch.ahead + k * fetch.step;
          hwy::Prefetch(ahead);
          if constexpr (sizeof(Word) == 4) hwy::Prefetch(ahead + 64);
        }
      });
    };
    // A pass that begins inside a panel finds its lines fetched by the one
    // before.
    if (pass * kUnits % kUnitsPerPanel == 0) {
      AccumulateTile<Weights, R, kUnits>(unit, value, count, acc, kAccStride,
                                         acc_unit, prefetch);
    } else {
      AccumulateTile<Weights, R, kUnits>(
          unit, value, count, acc, kAccStride, acc_unit,
          [](int64_t) TRUNKLINE_INLINE_LAMBDA {});
    }
  }
}

HWY_INLINE void FinishRows(const float* acc, int64_t rows, int64_t panel,
                           int64_t acc_stride, const PackedMatrix& w,
                           const ProductOutput& output) {
  const int64_t n_begin = panel * kPanel;
  const int64_t n_count = std::min(acc_stride, w.n() - n_begin);
  for (int64_t r = 0; r < rows; ++r) {
    FinishRow(acc + r * acc_stride, n_count, output,
              output.y + r * output.y_stride + n_begin);
  }
}

// At most one register tile of rows: each panel from end to end.
template <class Weights, size_t R, size_t kPanels>
HWY_INLINE void RowsTimesPanels(const float* const* rows, const PackedMatrix& w,
                                int64_t panel, const ProductOutput& output) {
  constexpr bool kOnePass = kPanels * kUnitsPerPanel <= UnitsOfTile<R>();
  HWY_ALIGN float acc[R * kPanels * kPanel] = {};
  const int64_t block = kOnePass ? w.k() : kInputBlock;
  const Fetch fetch{
      kPrefetchBytes / static_cast<int64_t>(kPanels),
      kPanel * static_cast<int64_t>(sizeof(typename Weights::Word))};
  for (int64_t begin = 0; begin < w.k(); begin += block) {
    TileTimesPanels<Weights, R, kPanels>(
        rows, w, panel, begin, std::min(block, w.k() - begin), fetch, acc);
  }
  FinishRows(acc, R, panel, static_cast<int64_t>(kPanels) * kPanel, w, output);
}

template <class Weights, size_t R>
void RowsTimesRange(const float* const* rows, const PackedMatrix& w,
                    int64_t panel_begin, int64_t panel_end,
                    const ProductOutput& output) {
  constexpr size_t kPanels = PanelsOfTile<R>();
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

// One register tile of rows.
template <class Weights, size_t... R>
void FewRows(std::index_sequence<R...>, const float* const* rows,
             int64_t row_count, const PackedMatrix& w, int64_t panel_begin,
             int64_t panel_end, const ProductOutput& output) {
  using Fn = void (*)(const float* const*, const PackedMatrix&, int64_t,
                      int64_t, const ProductOutput&);
  static constexpr Fn kTable[] = {&RowsTimesRange<Weights, R + 1>...};
  kTable[row_count - 1](rows, w, panel_begin, panel_end, output);
}

template <class Weights, size_t R, size_t kPanels>
void BlockOfTile(const float* const* rows, const PackedMatrix& w, int64_t panel,
                 int64_t begin, int64_t count, Fetch fetch, float* acc) {
  TileTimesPanels<Weights, R, kPanels>(rows, w, panel, begin, count, fetch,
                                       acc);
}

// Several register tiles of rows: all use a block of kPanels panels while it is
// in the first level cache, and each fetches its share of the next block.
template <class Weights, size_t kPanels, size_t... R>
void SomeRowsTimesPanels(std::index_sequence<R...>, const float* const* rows,
                         const RowTiles& tiles, const PackedMatrix& w,
                         int64_t panel, const ProductOutput& output) {
  using Fn = void (*)(const float* const*, const PackedMatrix&, int64_t,
                      int64_t, int64_t, Fetch, float*);
  static constexpr Fn kTable[] = {&BlockOfTile<Weights, R + 1, kPanels>...};
  constexpr int64_t kAccStride = static_cast<int64_t>(kPanels) * kPanel;
  constexpr int64_t kGroupBytes =
      kPanel * static_cast<int64_t>(sizeof(typename Weights::Word));
  HWY_ALIGN float acc[kDirectRows * kPanels * kPanel];
  std::fill(acc, acc + tiles.rows * kAccStride, 0.0f);
  for (int64_t begin = 0; begin < w.k(); begin += kInputBlock) {
    const int64_t count = std::min(kInputBlock, w.k() - begin);
    const int64_t share = count * kGroupBytes / tiles.count;
    for (int64_t t = 0; t < tiles.count; ++t) {
      const int64_t row = tiles.begin(t);
      const Fetch fetch{kInputBlock * kGroupBytes + t * share,
                        kGroupBytes / tiles.count};
      kTable[tiles.size(t) - 1](rows + row, w, panel, begin, count, fetch,
                                acc + row * kAccStride);
    }
  }
  FinishRows(acc, tiles.rows, panel, kAccStride, w, output);
}

template <class Weights>
void SomeRows(const float* const* rows, int64_t row_count,
              const PackedMatrix& w, int64_t panel_begin, int64_t panel_end,
              const ProductOutput& output) {
  constexpr auto kSequence = std::make_index_sequence<kTileRows>();
  constexpr auto kSide = static_cast<int64_t>(kSidePanels);
  const RowTiles tiles(row_count, kTileRows);
  int64_t p = panel_begin;
  for (; p + kSide <= panel_end; p += kSide) {
    SomeRowsTimesPanels<Weights, kSidePanels>(kSequence, rows, tiles, w, p,
                                              output);
  }
  for (; p < panel_end; ++p) {
    SomeRowsTimesPanels<Weights, 1>(kSequence, rows, tiles, w, p, output);
  }
}

template <class Weights>
void ForWeights(const float* const* rows, int64_t row_count,
                const PackedMatrix& w, int64_t panel_begin, int64_t panel_end,
                const ProductOutput& output) {
  if (row_count <= static_cast<int64_t>(kTileRows)) {
    FewRows<Weights>(std::make_index_sequence<kTileRows>(), rows, row_count, w,
                     panel_begin, panel_end, output);
  } else {
    SomeRows<Weights>(rows, row_count, w, panel_begin, panel_end, output);
  }
}

void DirectProductOnTarget(const RowSource& source, const PackedMatrix& w,
                           int64_t panel_begin, int64_t panel_end,
                           const ProductOutput& output) {
  const float* rows[kDirectRows];
  for (int64_t m = 0; m < source.rows; ++m) rows[m] = source.row(m);
  switch (w.dtype()) {
    case DType::kF32:
      return ForWeights<F32Weights>(rows, source.rows, w, panel_begin,
                                    panel_end, output);
    case DType::kF16:
      return ForWeights<F16Weights>(rows, source.rows, w, panel_begin,
                                    panel_end, output);
    case DType::kBF16:
      return ForWeights<Bf16Weights>(rows, source.rows, w, panel_begin,
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
