#pragma once

// The transposition behind PackedMatrix::Pack: 32 rows of a stored matrix
// become one panel.

#include <cstddef>
#include <cstdint>

#include "common/dtype.h"

namespace trunkline::kernels {

// rows: row_count (at most PackedMatrix::kPanel) rows of k elements, one after
// the other, at any address. panel: k groups of kPanel, written in whole; where
// there is no row, zero.
void PackPanel(const std::byte* rows, int64_t row_count, int64_t k, DType dtype,
               std::byte* panel);

// The same for class bf16dot, from BF16 rows: (k + 1) / 2 groups of kPanel
// pairs.
void PackPairPanel(const std::byte* rows, int64_t row_count, int64_t k,
                   std::byte* panel);

// Where output `o` of a panel stands in its group of kPanel.
int64_t PlaceInGroup(DType dtype, int64_t o);

}  // namespace trunkline::kernels
