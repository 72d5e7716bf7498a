#include "kernels/product_runner.h"

#include <algorithm>

#include "kernels/pair_product.h"

namespace trunkline::kernels {
namespace {

// Enough tasks per thread that the last to finish is not far behind, few enough
// that starting one costs nothing.
constexpr int64_t kTasksPerThread = 8;

// Rows of one task at most: their packed block of inputs fits in the second
// level cache beside a panel range's accumulators, and they are enough to pay
// for what each block of weights costs once.
constexpr int64_t kRowsPerTask = 576;
constexpr int64_t kTiledPanelsMax = 4;

// Rows whose arithmetic the transfer of a panel hides.
constexpr int64_t kRowsHidden = 8;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool InPairs(const Product& product) {
  return product.w->numerics() == Numerics::kBf16Dot;
}

// Rows that a product of this class takes without packing them first, and rows
// of a tile, at most.
struct RowLimits {
  int64_t direct, tile;
};
RowLimits RowLimitsOf(const Product& product) {
  if (InPairs(product)) return {PairTileRows(), PairTileRows()};
  return {DirectRows(), TileRowsMax()};
}

// Words of a packed row.
int64_t PackedWords(const Product& product) {
  return InPairs(product) ? product.w->input_pairs() : product.w->k();
}

}  // namespace

void ProductRunner::Plan(const ThreadPool& pool,
                         std::span<const Product> products) {
  // Cost of a panel: its bytes, times the rows once they exceed what its
  // transfer hides.
  const auto panel_cost = [&](const Product& product) {
    return product.w->panel_bytes() *
           std::max(product.source.rows, kRowsHidden) / kRowsHidden;
  };
  int64_t cost = 0;
  for (const Product& product : products) {
    if (product.source.rows == 0) continue;
    cost += product.w->panels() * panel_cost(product);
  }
  const int64_t task_cost =
      std::max<int64_t>(cost / (pool.threads() * kTasksPerThread), 1);

  cuts_.clear();
  tasks_ = 0;
  pack_tiles_ = 0;
  packed_floats_ = 0;
  for (const Product& product : products) {
    Cut cut;
    cut.task_begin = tasks_;
    cut.pack_begin = pack_tiles_;
    cut.packed_offset = packed_floats_;
    const int64_t rows = product.source.rows;
    const int64_t panels = product.w->panels();
    if (rows > 0 && panels > 0) {
      int64_t panels_per_task = std::clamp<int64_t>(
          task_cost / std::max<int64_t>(panel_cost(product), 1), 1, panels);
      const RowLimits limits = RowLimitsOf(product);
      if (rows > limits.direct) {
        const RowTiles tiles(rows, limits.tile);
        cut.tile_ranges = CeilDiv(
            tiles.count, std::max<int64_t>(kRowsPerTask / limits.tile, 1));
        panels_per_task = std::min(
            {panels_per_task * cut.tile_ranges, kTiledPanelsMax, panels});
        pack_tiles_ += tiles.count;
        packed_floats_ += CeilDiv(rows * PackedWords(product), 16) * 16;
      }
      cut.panel_ranges = CeilDiv(panels, panels_per_task);
      // Few tasks: as many for each thread, so that none waits for the last.
      if (products.size() == 1) {
        cut.panel_ranges = std::min(
            CeilDiv(cut.panel_ranges, pool.threads()) * pool.threads(), panels);
      }
      tasks_ += cut.panel_ranges * std::max<int64_t>(cut.tile_ranges, 1);
    }
    cuts_.push_back(cut);
  }
}

size_t ProductRunner::CutOf(int64_t task) const {
  // The last cut that begins at or before the task; one without tasks shares
  // its begin with its successor and is thereby skipped.
  const auto after = std::upper_bound(
      cuts_.begin(), cuts_.end(), task,
      [](int64_t value, const Cut& cut) { return value < cut.task_begin; });
  return static_cast<size_t>(after - cuts_.begin()) - 1;
}

size_t ProductRunner::PackCutOf(int64_t tile) const {
  const auto after = std::upper_bound(
      cuts_.begin(), cuts_.end(), tile,
      [](int64_t value, const Cut& cut) { return value < cut.pack_begin; });
  return static_cast<size_t>(after - cuts_.begin()) - 1;
}

void ProductRunner::PackRows(ThreadPool& pool,
                             std::span<const Product> products) {
  if (pack_tiles_ == 0) return;
  float* packed = packed_rows_.Floats(packed_floats_);
  packed_ = packed;
  pool.ParallelFor(pack_tiles_, [&](int64_t index, int) {
    const size_t c = PackCutOf(index);
    const Product& product = products[c];
    const RowTiles tiles(product.source.rows, RowLimitsOf(product).tile);
    const int64_t tile = index - cuts_[c].pack_begin;
    float* to = packed + cuts_[c].packed_offset;
    if (InPairs(product)) {
      PackPairTile(product.source, product.w->k(), tiles, tile,
                   reinterpret_cast<uint32_t*>(to));
    } else {
      PackRowTile(product.source, product.w->k(), tiles, tile, to);
    }
  });
}

void ProductRunner::RunTask(std::span<const Product> products,
                            int64_t task) const {
  const size_t c = CutOf(task);
  const Cut& cut = cuts_[c];
  const Product& product = products[c];
  const int64_t index = task - cut.task_begin;
  const int64_t panel_range = index % cut.panel_ranges;
  const int64_t tile_range = index / cut.panel_ranges;
  const int64_t panels = product.w->panels();
  const int64_t panel_begin = panel_range * panels / cut.panel_ranges;
  const int64_t panel_end = (panel_range + 1) * panels / cut.panel_ranges;
  const bool in_pairs = InPairs(product);
  if (cut.tile_ranges == 0) {
    (in_pairs ? DirectPairProduct : DirectProduct)(
        product.source, *product.w, panel_begin, panel_end, product.output);
    return;
  }
  const RowTiles tiles(product.source.rows, RowLimitsOf(product).tile);
  TiledRange range;
  // Of about equal size: a lone tile would widen for itself.
  range.tile_begin = tile_range * tiles.count / cut.tile_ranges;
  range.tile_end = (tile_range + 1) * tiles.count / cut.tile_ranges;
  range.panel_begin = panel_begin;
  range.panel_end = panel_end;
  const float* packed = packed_ + cut.packed_offset;
  if (in_pairs) {
    TiledPairProduct(reinterpret_cast<const uint32_t*>(packed), tiles,
                     *product.w, range, product.output);
  } else {
    TiledProduct(packed, tiles, *product.w, range, product.output);
  }
}

void ProductRunner::Run(ThreadPool& pool, std::span<const Product> products) {
  Plan(pool, products);
  PackRows(pool, products);
  pool.ParallelFor(tasks_, [&](int64_t task, int) { RunTask(products, task); });
}

}  // namespace trunkline::kernels
