#pragma once

// What the fixed order of a sum costs: the product of few rows as one would
// write it if any order would do. Each output has several accumulators that
// take inputs in turn and are added at the end. For comparison only; its bits
// are not the contract's.

#include <cstdint>

#include "common/thread_pool.h"
#include "kernels/packed_matrix.h"

namespace trunkline::bench {

// y[rows, w.n()] = x[rows, w.k()] times w, BF16 weights, 1 to 8 rows.
void FreeOrderProduct(ThreadPool& pool, const float* x, int64_t rows,
                      const kernels::PackedMatrix& w, float* y);

}  // namespace trunkline::bench
