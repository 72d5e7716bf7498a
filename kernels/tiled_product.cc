// Products of many rows: row tiles times panels. The first tile of each block
// of inputs widens the weights on their way through its registers and keeps
// them as fp32 in the first level cache, where the other tiles find them; the
// rows' block stays in the second.

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
// A widened block, a tile's part of the rows and its accumulators stay in half
// of a first level cache of 48 KiB, since somebody else's thread may have the
// other half.
constexpr int64_t kInputBlock = 128;
// How far ahead of its loads a lone tile fetches the weights: the latency of
// memory times what one core computes meanwhile, with room.
constexpr int64_t kAheadBytes = 6144;

// What a register tile fetches while it runs: the lines from `from` on, `step`
// bytes further for each input. A step of 0 fetches nothing new.
struct Fetch {
  const std::byte* from;
  int64_t step;
};

// What a register tile does with the weights that pass through it.
enum class Pass {
  kOnly,   // no other tile needs them
  kFirst,  // leaves them widened, in natural output order
  kNext,   // finds them widened
};

// One row tile times one block of one panel.
template <class Weights, size_t R, Pass kPass>
void TileTimesBlock(const float* packed, const std::byte* weights,
                    int64_t k_count, float* acc, Fetch fetch, float* wide) {
  using Word = typename Weights::Word;
  constexpr size_t kFetchBytes =
      kPass == Pass::kNext ? 64 : kPanel * sizeof(Word);
  const FullTag d;
  const auto value = [packed](auto r, int64_t k) TRUNKLINE_INLINE_LAMBDA {
    return packed[k * static_cast<int64_t>(R) + r];
  };
  for (size_t part = 0; part < kUnitsPerPanel; ++part) {
    const Word* unit[1] = {reinterpret_cast<const Word*>(weights) +
                           part * Weights::kUnitStep};
    const int64_t acc_unit[1] = {static_cast<int64_t>(part * kLanes)};
    const auto hint = [&](int64_t) TRUNKLINE_INLINE_LAMBDA {
      for (size_t at = 0; at < kFetchBytes; at += 64)
        hwy::Prefetch(fetch.from + at);
      fetch.from += fetch.step;
    };
    float* kept = wide + part * kLanes;
    const auto keep = [&](auto, int64_t k, Vec low,
                          Vec high) TRUNKLINE_INLINE_LAMBDA {
      if constexpr (kPass == Pass::kFirst) {
        hn::StoreU(low, d, kept + k * kPanel);
        hn::StoreU(high, d, kept + k * kPanel + kHalfPanel);
      }
    };
    AccumulateTile<Weights, R, 1>(unit, value, k_count, acc, kPanel, acc_unit,
                                  hint, keep);
    fetch.step = 0;
  }
}

using TileFn = void (*)(const float*, const std::byte*, int64_t, float*, Fetch,
                        float*);
template <class Weights, Pass kPass, size_t... R>
TileFn TileOf(std::index_sequence<R...>, int64_t rows) {
  static constexpr TileFn kTable[] = {
      &TileTimesBlock<Weights, R + 1, kPass>...};
  return kTable[rows - 1];
}
template <class Weights, Pass kPass>
TileFn TileOf(int64_t rows) {
  return TileOf<Weights, kPass>(std::make_index_sequence<kTileRows>(), rows);
}

// What the tiles of a task (two at least) fetch while they compute: the first
// few their share each of the weights' block that comes next, since one alone
// would wait for memory; the others, over the first panels, the rows' next
// blocks. A row block is used by all panels, but its first use would come line
// by line. Tiles with neither to fetch bring their own rows nearer.
class BlockFetch {
 public:
  BlockFetch(const float* packed, const RowTiles& tiles, const PackedMatrix& w,
             const TiledRange& range)
      : packed_(packed),
        tiles_(tiles),
        w_(w),
        range_(range),
        panels_(range.panel_end - range.panel_begin),
        tile_count_(range.tile_end - range.tile_begin),
        shares_(tile_count_ >= 4 ? 4 : 2),
        share_step_(kPanel * DTypeBytes(w.dtype()) / shares_),
        share_bytes_(kInputBlock * share_step_) {}

  // During tile `t` of panel `p` (both counted from the range's begin) in the
  // block of inputs from `begin` on, whose rows are at `x`.
  Fetch During(int64_t begin, int64_t p, int64_t t, const float* x) const {
    if (t < shares_) {
      const bool last = p + 1 == panels_;
      const std::byte* panel =
          w_.panel(range_.panel_begin + (last ? 0 : p + 1));
      const int64_t next = last ? begin + kInputBlock : begin;
      return {panel + next * kPanel * DTypeBytes(w_.dtype()) + t * share_bytes_,
              share_step_};
    }
    const int64_t turn = p * (tile_count_ - shares_) + t - shares_;
    if (turn < tile_count_ && begin + kInputBlock < w_.k()) {
      const int64_t tile = range_.tile_begin + turn;
      return {reinterpret_cast<const std::byte*>(
                  packed_ + tiles_.begin(tile) * w_.k() +
                  (begin + kInputBlock) * tiles_.size(tile)),
              64};
    }
    return {reinterpret_cast<const std::byte*>(x) + kRowsAheadBytes,
            tiles_.size(range_.tile_begin + t) *
                static_cast<int64_t>(sizeof(float))};
  }

 private:
  // The latency of the second level cache, with room.
  static constexpr int64_t kRowsAheadBytes = 1024;

  const float* packed_;
  const RowTiles& tiles_;
  const PackedMatrix& w_;
  const TiledRange& range_;
  const int64_t panels_;
  const int64_t tile_count_;
  const int64_t shares_;  // tiles that fetch weights; divides a cache line
  const int64_t share_step_;
  const int64_t share_bytes_;
};

// acc: for each panel of the range, its tiles' rows of kPanel floats.
template <class Weights>
void AccumulateRange(const float* packed, const RowTiles& tiles,
                     const PackedMatrix& w, const TiledRange& range,
                     int64_t acc_floats, float* acc, float* wide) {
  constexpr bool kIsWide = Weights::kType == DType::kF32;
  constexpr auto kGroupBytes =
      kPanel * static_cast<int64_t>(sizeof(typename Weights::Word));
  const int64_t panels = range.panel_end - range.panel_begin;
  const int64_t row_begin = tiles.begin(range.tile_begin);
  const int64_t first_rows = tiles.size(range.tile_begin);
  if (range.tile_end - range.tile_begin == 1) {
    for (int64_t p = 0; p < panels; ++p) {
      const std::byte* panel = w.panel(range.panel_begin + p);
      TileOf<Weights, Pass::kOnly>(first_rows)(
          packed + row_begin * w.k(), panel, w.k(), acc + p * acc_floats,
          {panel + kAheadBytes, kGroupBytes}, nullptr);
    }
    return;
  }
  const BlockFetch fetch(packed, tiles, w, range);
  for (int64_t begin = 0; begin < w.k(); begin += kInputBlock) {
    const int64_t count = std::min(kInputBlock, w.k() - begin);
    for (int64_t p = 0; p < panels; ++p) {
      const std::byte* stored =
          w.panel(range.panel_begin + p) + begin * kGroupBytes;
      const float* first_x = packed + row_begin * w.k() + begin * first_rows;
      TileOf<Weights, kIsWide ? Pass::kOnly : Pass::kFirst>(first_rows)(
          first_x, stored, count, acc + p * acc_floats,
          fetch.During(begin, p, 0, first_x), wide);
      const std::byte* kept =
          kIsWide ? stored : reinterpret_cast<const std::byte*>(wide);
      for (int64_t t = range.tile_begin + 1; t < range.tile_end; ++t) {
        const int64_t rows = tiles.size(t);
        const float* x = packed + tiles.begin(t) * w.k() + begin * rows;
        TileOf<F32Weights, Pass::kNext>(rows)(
            x, kept, count,
            acc + p * acc_floats + (tiles.begin(t) - row_begin) * kPanel,
            fetch.During(begin, p, t - range.tile_begin, x), nullptr);
      }
    }
  }
}

void TiledProductOnTarget(const float* packed, const RowTiles& tiles,
                          const PackedMatrix& w, const TiledRange& range,
                          const ProductOutput& output) {
  const int64_t row_begin = tiles.begin(range.tile_begin);
  const int64_t row_end = tiles.begin(range.tile_end);
  const int64_t panels = range.panel_end - range.panel_begin;
  const int64_t acc_floats = (row_end - row_begin) * kPanel;  // of one panel
  static thread_local ThreadScratch scratch;
  float* wide = scratch.Floats(kInputBlock * kPanel + panels * acc_floats);
  float* acc = wide + kInputBlock * kPanel;
  std::memset(acc, 0, static_cast<size_t>(panels * acc_floats) * sizeof(float));
  switch (w.dtype()) {
    case DType::kF32:
      AccumulateRange<F32Weights>(packed, tiles, w, range, acc_floats, acc,
                                  wide);
      break;
    case DType::kF16:
      AccumulateRange<F16Weights>(packed, tiles, w, range, acc_floats, acc,
                                  wide);
      break;
    case DType::kBF16:
      AccumulateRange<Bf16Weights>(packed, tiles, w, range, acc_floats, acc,
                                   wide);
      break;
  }
  FinishRange(acc, tiles, w, range, output, &FinishRow);
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

void FinishRange(const float* acc, const RowTiles& tiles, const PackedMatrix& w,
                 const TiledRange& range, const ProductOutput& output,
                 FinishRowFn finish_row) {
  constexpr int64_t kPanel = PackedMatrix::kPanel;
  constexpr int64_t kFloatsPerLine = 16;
  const int64_t row_begin = tiles.begin(range.tile_begin);
  const int64_t row_end = tiles.begin(range.tile_end);
  const int64_t panels = range.panel_end - range.panel_begin;
  const int64_t acc_floats = (row_end - row_begin) * kPanel;  // of one panel
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
      finish_row(acc + p * acc_floats + (m - row_begin) * kPanel,
                 std::min(kPanel, w.n() - n_begin), output,
                 output.y + m * output.y_stride + n_begin);
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
