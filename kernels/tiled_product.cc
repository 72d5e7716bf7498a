// Products of many rows: row tiles times panels, blocked so that one panel's
// block of inputs, widened to fp32, stays in the first level cache while all
// row tiles pass over it, and the rows' block stays in the second.

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/panel_product.h"
#include "kernels/thread_scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/tiled_product.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/register_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace trunkline::kernels {
namespace HWY_NAMESPACE {

// One unit per register tile: two accumulators a row, two vectors of weights
// and one of x fill the registers.
constexpr size_t kTileRows = kRegisters == 32 ? 14 : 6;
// A widened block, the one fetched meanwhile and a tile's part of the rows stay
// in the first level cache.
constexpr int64_t kInputBlock = 128;
constexpr int64_t kFloatsPerLine = 16;

// Widens k_count groups of one panel into `wide` (natural output order).
template <class Weights>
void WidenBlock(const std::byte* from, int64_t k_count, float* wide) {
  const FullTag d;
  const auto* group = reinterpret_cast<const typename Weights::Word*>(from);
  for (int64_t k = 0; k < k_count; ++k) {
    Unroll<kUnitsPerPanel>([&](auto u) TRUNKLINE_INLINE_LAMBDA {
      Vec low, high;
      Weights::Load(group + k * kPanel + u * Weights::kUnitStep, low, high);
      hn::StoreU(low, d, wide + k * kPanel + u * kLanes);
      hn::StoreU(high, d, wide + k * kPanel + kHalfPanel + u * kLanes);
    });
  }
}

// One row tile times one panel's block. A cache line from `fetch` on is fetched
// for each input, `fetch_step` bytes apart: a step of 0 fetches nothing new.
template <size_t R>
void TileTimesBlock(const float* packed, const float* wide, int64_t k_count,
                    float* acc, const std::byte* fetch, int64_t fetch_step) {
  const auto value = [packed](auto r, int64_t k) TRUNKLINE_INLINE_LAMBDA {
    return packed[k * static_cast<int64_t>(R) + r];
  };
  for (size_t u = 0; u < kUnitsPerPanel; ++u) {
    const float* unit[1] = {wide + u * kLanes};
    const int64_t acc_unit[1] = {static_cast<int64_t>(u * kLanes)};
    AccumulateTile<F32Weights, R, 1>(unit, value, k_count, acc, kPanel,
                                     acc_unit,
                                     [&](int64_t) TRUNKLINE_INLINE_LAMBDA {
                                       hwy::Prefetch(fetch);
                                       fetch += fetch_step;
                                     });
    fetch_step = 0;
  }
}

using TileFn = void (*)(const float*, const float*, int64_t, float*,
                        const std::byte*, int64_t);
template <size_t... R>
TileFn TileOf(std::index_sequence<R...>, int64_t rows) {
  static constexpr TileFn kTable[] = {&TileTimesBlock<R + 1>...};
  return kTable[rows - 1];
}

// The groups of one panel's block as fp32: in place for F32 weights.
const float* WideBlock(const PackedMatrix& w, int64_t panel, int64_t begin,
                       int64_t count, float* buffer) {
  const std::byte* from =
      w.panel(panel) + begin * kPanel * DTypeBytes(w.dtype());
  switch (w.dtype()) {
    case DType::kF32:
      return reinterpret_cast<const float*>(from);
    case DType::kF16:
      WidenBlock<F16Weights>(from, count, buffer);
      break;
    case DType::kBF16:
      WidenBlock<Bf16Weights>(from, count, buffer);
      break;
  }
  return buffer;
}

// What a task fetches while it computes, one cache line an input: during the
// first tile of each panel the weights' block that comes next, and during the
// other tiles, from the first panel on, the rows' next blocks. A row block is
// used by all panels, but its first use would wait for the memory line by line.
class BlockFetch {
 public:
  BlockFetch(const float* packed, const RowTiles& tiles, const PackedMatrix& w,
             const TiledRange& range)
      : packed_(packed), tiles_(tiles), w_(w), range_(range) {}

  struct Lines {
    const std::byte* from;
    int64_t step;  // 0: nothing new
  };
  // During tile `t` of panel `p` (both counted from the range's begin) in the
  // block of inputs from `begin` on.
  Lines During(int64_t begin, int64_t p, int64_t t) const {
    const int64_t panels = range_.panel_end - range_.panel_begin;
    const int64_t tile_count = range_.tile_end - range_.tile_begin;
    if (t == 0) {
      const int64_t next = p + 1 < panels ? begin : begin + kInputBlock;
      return {w_.panel(range_.panel_begin + (p + 1) % panels) +
                  next * kPanel * DTypeBytes(w_.dtype()),
              64};
    }
    const int64_t turn = p * (tile_count - 1) + t - 1;
    const int64_t tile = range_.tile_begin + turn;
    if (turn >= tile_count || begin + kInputBlock >= w_.k()) {
      return {reinterpret_cast<const std::byte*>(packed_), 0};
    }
    return {reinterpret_cast<const std::byte*>(
                packed_ + tiles_.begin(tile) * w_.k() +
                (begin + kInputBlock) * tiles_.size(tile)),
            64};
  }

 private:
  const float* packed_;
  const RowTiles& tiles_;
  const PackedMatrix& w_;
  const TiledRange& range_;
};

void TiledProductOnTarget(const float* packed, const RowTiles& tiles,
                          const PackedMatrix& w, const TiledRange& range,
                          const ProductOutput& output) {
  const int64_t k_total = w.k();
  const int64_t row_begin = tiles.begin(range.tile_begin);
  const int64_t row_end = tiles.begin(range.tile_end);
  const int64_t panels = range.panel_end - range.panel_begin;
  const int64_t acc_floats = (row_end - row_begin) * kPanel;  // of one panel
  static thread_local ThreadScratch scratch;
  float* wide_buffer =
      scratch.Floats(kInputBlock * kPanel + panels * acc_floats);
  float* acc = wide_buffer + kInputBlock * kPanel;
  std::memset(acc, 0, static_cast<size_t>(panels * acc_floats) * sizeof(float));
  const auto sequence = std::make_index_sequence<kTileRows>();
  const BlockFetch fetch(packed, tiles, w, range);

  for (int64_t begin = 0; begin < k_total; begin += kInputBlock) {
    const int64_t count = std::min(kInputBlock, k_total - begin);
    for (int64_t p = 0; p < panels; ++p) {
      const float* wide =
          WideBlock(w, range.panel_begin + p, begin, count, wide_buffer);
      for (int64_t t = range.tile_begin; t < range.tile_end; ++t) {
        const int64_t rows = tiles.size(t);
        const BlockFetch::Lines lines =
            fetch.During(begin, p, t - range.tile_begin);
        TileOf(sequence, rows)(
            packed + tiles.begin(t) * k_total + begin * rows, wide, count,
            acc + p * acc_floats + (tiles.begin(t) - row_begin) * kPanel,
            lines.from, lines.step);
      }
    }
  }
  // Row by row, so that a row's outputs are written side by side; lines two
  // rows ahead are fetched for writing, since nothing else hides their latency.
  const int64_t width =
      std::min(panels * kPanel, w.n() - range.panel_begin * kPanel);
  for (int64_t m = row_begin; m < row_end; ++m) {
    if (m + 2 < row_end) {
      const float* ahead =
          output.y + (m + 2) * output.y_stride + range.panel_begin * kPanel;
      for (int64_t i = 0; i < width; i += kFloatsPerLine) {
        __builtin_prefetch(ahead + i, 1);
      }
    }
    for (int64_t p = 0; p < panels; ++p) {
      const int64_t n_begin = (range.panel_begin + p) * kPanel;
      FinishRow(acc + p * acc_floats + (m - row_begin) * kPanel,
                std::min(kPanel, w.n() - n_begin), output,
                output.y + m * output.y_stride + n_begin);
    }
  }
}

int64_t TileRowsMaxOnTarget() { return kTileRows; }

}  // namespace HWY_NAMESPACE
}  // namespace trunkline::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trunkline::kernels {

HWY_EXPORT(TiledProductOnTarget);
HWY_EXPORT(TileRowsMaxOnTarget);

int64_t TileRowsMax() { return HWY_DYNAMIC_DISPATCH(TileRowsMaxOnTarget)(); }

void PackRowTile(const RowSource& source, int64_t k, const RowTiles& tiles,
                 int64_t tile, float* packed) {
  const int64_t rows = tiles.size(tile);
  const int64_t first = tiles.begin(tile);
  float* to = packed + first * k;
  // Whole cache lines of every row at a time; the lines that are written some
  // blocks later are fetched for writing.
  constexpr int64_t kBlock = 16;
  constexpr int64_t kBlocksAhead = 6;
  for (int64_t begin = 0; begin < k; begin += kBlock) {
    const int64_t count = std::min(kBlock, k - begin);
    if (begin + (kBlocksAhead + 1) * kBlock <= k) {
      for (int64_t r = 0; r < rows; ++r) {
        __builtin_prefetch(
            to + (begin + kBlocksAhead * kBlock) * rows + r * kBlock, 1);
      }
    }
    for (int64_t r = 0; r < rows; ++r) {
      const float* from = source.row(first + r) + begin;
      float* place = to + begin * rows + r;
      for (int64_t i = 0; i < count; ++i) place[i * rows] = from[i];
    }
  }
}

void TiledProduct(const float* packed, const RowTiles& tiles,
                  const PackedMatrix& w, const TiledRange& range,
                  const ProductOutput& output) {
  if (range.tile_begin >= range.tile_end ||
      range.panel_begin >= range.panel_end) {
    return;
  }
  HWY_DYNAMIC_DISPATCH(TiledProductOnTarget)(packed, tiles, w, range, output);
}

}  // namespace trunkline::kernels
#endif  // HWY_ONCE
