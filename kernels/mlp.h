#pragma once

// The ungated two-matrix block of the family: y = round(round(relu(round(x
// up^T))^2) down^T). The shared expert, a dense layer and every routed expert
// are this (nemotron-h.md 3.9, 3.10).

#include <cstdint>
#include <span>
#include <vector>

#include "common/aligned_buffer.h"
#include "kernels/kernel_context.h"
#include "kernels/packed_matrix.h"

namespace trunkline::kernels {

struct MlpWeights {
  PackedMatrix up;    // [I, X]
  PackedMatrix down;  // [X, I]
  int64_t bytes() const { return up.bytes() + down.bytes(); }
};

// Rows of several experts at once: group g runs rows row_begin ..
// row_begin+row_count-1 of the index through weights. Each group's weights are
// read once whatever its number of rows.
struct MlpGroup {
  const MlpWeights* weights = nullptr;
  int64_t row_begin = 0;
  int64_t row_count = 0;
};

struct GroupedMlpArgs {
  const float* x = nullptr;  // [*, X]
  int64_t x_stride = 0;
  const uint32_t* row_index =
      nullptr;  // [total rows]: which row of x; null: row i is row i
  std::span<const MlpGroup>
      groups;          // contiguous, in increasing row_begin, covering all rows
  float* y = nullptr;  // [total rows, X], row i is the i-th of the index
  int64_t y_stride = 0;
  Activation out = Activation::kF32;
};

// Grows once, then no call allocates.
class MlpScratch {
 public:
  float* Reserve(int64_t floats);

 private:
  AlignedBuffer buffer_;
};

void GroupedMlp(const KernelContext& context, const GroupedMlpArgs& args,
                MlpScratch* scratch);

namespace reference {
void GroupedMlp(const GroupedMlpArgs& args);
}

}  // namespace trunkline::kernels
