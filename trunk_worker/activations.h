#pragma once

// Every buffer that the rows of a step pass through, named, with its shape.
// Allocated once for the largest step; a step allocates nothing. All fp32
// (kernels/README.md, contract 7), all row-major, row r of the step in row r.
// Buffers that never live at the same time are still separate: the whole costs
// less than one layer's weights.

#include <algorithm>
#include <cstdint>

#include "common/aligned_buffer.h"
#include "kernels/mlp.h"
#include "model/model_config.h"

namespace trunkline::trunk {

// A row-major fp32 matrix with room for rows_max rows.
class RowBuffer {
 public:
  RowBuffer() = default;
  RowBuffer(int64_t rows_max, int64_t width)
      : buffer_(static_cast<size_t>(rows_max * width) * sizeof(float)) {}
  float* data() { return buffer_.as<float>(); }
  const float* data() const { return buffer_.as<float>(); }
  int64_t bytes() const { return static_cast<int64_t>(buffer_.size()); }

 private:
  AlignedBuffer buffer_;
};

struct Activations {
  // The stream.
  RowBuffer residual;   // [rows, hidden]
  RowBuffer normed;     // [rows, hidden], what a mixer reads
  RowBuffer mixer_out;  // [rows, hidden], what a mixer adds

  // Mamba.
  RowBuffer in_proj;   // [rows, inner + conv_dim + heads]: z | x | B | C | dt
  RowBuffer conv_out;  // [rows, conv_dim]: x | B | C
  RowBuffer scan_out;  // [rows, inner], gated and normed in place

  // Attention.
  RowBuffer q;         // [rows, heads * head_dim]
  RowBuffer k, v;      // [rows, kv_heads * head_dim]
  RowBuffer attended;  // [rows, heads * head_dim]

  // Moe.
  RowBuffer scores;      // [rows, experts]
  RowBuffer latent_in;   // [rows, latent], what latent experts read
  RowBuffer latent_out;  // [rows, latent], their weighted sum
  RowBuffer shared_out;  // [rows, hidden]

  // Head.
  RowBuffer logits;  // [rows, vocab], wanted rows only; pages that no step
                     // ever wrote cost nothing

  kernels::MlpScratch mlp_scratch;

  // Widths differ by layer: each buffer is as wide as its widest user, and each
  // layer uses its own width as the stride.
  static Activations For(const model::ModelConfig& config, int64_t rows_max) {
    int64_t in_proj = 0, conv = 0, inner = 0, q = 0, kv = 0, experts = 0,
            latent = 0;
    for (const model::LayerSpec& spec : config.layers) {
      if (spec.kind == model::LayerKind::kMamba) {
        in_proj = std::max(in_proj, spec.mamba.in_proj_rows());
        conv = std::max(conv, spec.mamba.conv_dim());
        inner = std::max(inner, spec.mamba.inner());
      } else if (spec.kind == model::LayerKind::kAttention) {
        q = std::max(q, spec.attention.heads * spec.attention.head_dim);
        kv = std::max(kv, spec.attention.kv_heads * spec.attention.head_dim);
      } else if (spec.kind == model::LayerKind::kMoe) {
        experts = std::max(experts, spec.moe.experts);
        latent = std::max(latent, spec.moe.latent);
      }
    }
    auto rows = [&](int64_t width) { return RowBuffer(rows_max, width); };
    Activations a;
    a.residual = rows(config.hidden_size);
    a.normed = rows(config.hidden_size);
    a.mixer_out = rows(config.hidden_size);
    a.in_proj = rows(in_proj);
    a.conv_out = rows(conv);
    a.scan_out = rows(inner);
    a.q = rows(q);
    a.k = rows(kv);
    a.v = rows(kv);
    a.attended = rows(q);
    a.scores = rows(experts);
    a.latent_in = rows(latent);
    a.latent_out = rows(latent);
    a.shared_out = rows(config.hidden_size);
    a.logits = rows(config.vocab_size);
    return a;
  }
};

}  // namespace trunkline::trunk
