#pragma once

// Causal grouped-query attention without positional encoding
// (nemotron-h.md 3.8), over keys and values kept in fixed blocks of kKvBlock
// positions counted from position 0 of the sequence (contract 5).
//
// One query row at position i, one head, key blocks b = 0, 1, ... that hold
// positions <= i (and, with a window w > 0, > i - w):
//   s_j = (sum over d, increasing, of fma(q_d, k_jd)) * scale
//   m'  = max(m, max_j s_j);  c = exp(m - m') (0 for the first block);  p_j =
//   exp(s_j - m') l   = fma(l, c, sum of the block's p_j by contract 2 over the
//   64 places, absent ones 0) o_d = o_d * c, then o_d = fma(p_j, v_jd, o_d) in
//   increasing j
// and y_d = round(o_d / l). Blocks that lie wholly outside the window are
// skipped for every row alike.

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/kernel_context.h"

namespace trunkline::kernels {

inline constexpr int64_t kKvBlock = 64;

// Bytes of one KV block of one attention layer: keys and values of kKvBlock
// positions for all kv heads, in the activation type. The layout inside is the
// kernels' own (keys d-major so that lanes are positions, values
// position-major). A fresh block must be zero.
int64_t KvBlockBytes(int64_t kv_heads, int64_t head_dim, Activation type);

struct AttentionSegment {
  int64_t row_begin = 0;
  int64_t row_count = 0;
  int64_t position = 0;  // of the segment's first row in its sequence
  std::span<std::byte* const>
      blocks;  // this layer's blocks; enough for position + row_count
};

struct AttentionArgs {
  const float* q = nullptr;  // [rows, heads*head_dim], read
  int64_t q_stride = 0;
  const float* k =
      nullptr;  // [rows, kv_heads*head_dim], appended to the blocks first
  int64_t k_stride = 0;
  const float* v = nullptr;
  int64_t v_stride = 0;
  int64_t heads = 0;
  int64_t kv_heads =
      0;  // divides heads; head h reads kv head h / (heads / kv_heads)
  int64_t head_dim = 0;
  float scale = 0.0f;  // head_dim^-0.5
  int64_t window = 0;  // 0: none
  std::span<const AttentionSegment> segments;
  float* y = nullptr;  // [rows, heads*head_dim], written
  int64_t y_stride = 0;
  Activation out = Activation::kF32;  // also the cache's element type
};
// Appends the rows' keys and values to their blocks, then attends.
void Attention(const KernelContext& context, const AttentionArgs& args);

namespace reference {
void Attention(const AttentionArgs& args);
}

}  // namespace trunkline::kernels
