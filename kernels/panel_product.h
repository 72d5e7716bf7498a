#pragma once

// The inner half of every matrix product (contract 1): some rows times some
// panels of one packed matrix. matmul.cc and mlp.cc cut their work into such
// pieces; this file knows no threads.
//
// Few rows (up to DirectRows()) read x where it lies and stream the panels
// once, widening in registers. More rows go through packed row tiles: x is
// interleaved once per call, and the panels are taken one block of inputs at a
// time, which the first row tile widens into the first level cache and every
// other one uses before the next block is touched.

#include <cstdint>

#include "kernels/kernel_context.h"
#include "kernels/packed_matrix.h"

namespace trunkline::kernels {

struct RowSource {
  const float* x = nullptr;  // [*, k]
  int64_t x_stride = 0;
  const uint32_t* row_index = nullptr;  // null: row m is row m of x
  int64_t rows = 0;

  const float* row(int64_t m) const {
    return x +
           x_stride *
               (row_index != nullptr ? static_cast<int64_t>(row_index[m]) : m);
  }
};

struct ProductOutput {
  float* y = nullptr;  // [rows, n]
  int64_t y_stride = 0;
  Activation out = Activation::kF32;
  bool relu_square = false;  // y = round(relu(round(product))^2)
};

// Rows a direct product takes at most, and rows of a tile at most, on the
// active target.
int64_t DirectRows();
int64_t TileRowsMax();

// Tiles of nearly equal size, none larger than TileRowsMax().
struct RowTiles {
  RowTiles(int64_t row_count, int64_t rows_max)
      : rows(row_count), count((row_count + rows_max - 1) / rows_max) {}
  int64_t begin(int64_t tile) const { return rows * tile / count; }
  int64_t size(int64_t tile) const { return begin(tile + 1) - begin(tile); }

  int64_t rows;
  int64_t count;
};

// y for all rows of `source` (at most DirectRows()) and the panels
// [panel_begin, panel_end) of w.
void DirectProduct(const RowSource& source, const PackedMatrix& w,
                   int64_t panel_begin, int64_t panel_end,
                   const ProductOutput& output);

// packed: rows * k floats; tile t starts at tiles.begin(t) * k and holds, for
// each input, the values of its rows.
void PackRowTile(const RowSource& source, int64_t k, const RowTiles& tiles,
                 int64_t tile, float* packed);

// The rows of tiles [tile_begin, tile_end) and the panels [panel_begin,
// panel_end).
struct TiledRange {
  int64_t tile_begin = 0;
  int64_t tile_end = 0;
  int64_t panel_begin = 0;
  int64_t panel_end = 0;
};

// Where a class rounds one row's finished accumulators, `count` outputs of one
// panel, into y.
using FinishRowFn = void (*)(const float* acc, int64_t count,
                             const ProductOutput& output, float* y);
// The finished accumulators of a range into y. acc: for each panel of the range
// its tiles' rows of a panel's floats.
void FinishRange(const float* acc, const RowTiles& tiles, const PackedMatrix& w,
                 const TiledRange& range, const ProductOutput& output,
                 FinishRowFn finish_row);

// y for a range.
void TiledProduct(const float* packed, const RowTiles& tiles,
                  const PackedMatrix& w, const TiledRange& range,
                  const ProductOutput& output);

}  // namespace trunkline::kernels
