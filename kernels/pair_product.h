#pragma once

// The inner half of a matrix product in class bf16dot: some rows times some
// panels of one matrix packed in pairs of inputs. The twin of panel_product.h,
// with rows and weights in bf16 and the dot instruction in place of the fused
// multiply-add; product_runner.cc cuts the work for both. Needs
// MachineHasBf16Dot(), which packing such a matrix has checked.
//
// Few rows (up to PairTileRows()) stream the panels once. More rows go through
// packed row tiles, a block of inputs at a time: a panel's block stays in the
// first level cache while all row tiles pass over it.

#include <cstdint>

#include "kernels/packed_matrix.h"
#include "kernels/panel_product.h"

namespace trunkline::kernels {

// Rows of a register tile at most.
int64_t PairTileRows();

// packed: rows * pairs words; tile t starts at tiles.begin(t) * pairs and
// holds, for each pair of inputs, the pairs of its rows as bf16. pairs:
// w.input_pairs() of the matrix to come.
void PackPairTile(const RowSource& source, int64_t k, const RowTiles& tiles,
                  int64_t tile, uint32_t* packed);

// y for the rows of tiles [tile_begin, tile_end) and the panels [panel_begin,
// panel_end) of w.
void TiledPairProduct(const uint32_t* packed, const RowTiles& tiles,
                      const PackedMatrix& w, const TiledRange& range,
                      const ProductOutput& output);

// y for all rows of `source` (at most PairTileRows()) and the panels
// [panel_begin, panel_end) of w.
void DirectPairProduct(const RowSource& source, const PackedMatrix& w,
                       int64_t panel_begin, int64_t panel_end,
                       const ProductOutput& output);

}  // namespace trunkline::kernels
