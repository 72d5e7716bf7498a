#pragma once

// Counts a model: parameters, bytes on disk, bytes that one decode token
// reads, memory of a sequence. Pure. `trunkline inspect` prints it and
// admission plans with it.

#include <array>
#include <cstdint>
#include <vector>

#include "common/dtype.h"
#include "model/checkpoint.h"
#include "model/model_config.h"
#include "model/weight_partition.h"

namespace trunkline::model {

struct PartCensus {
  int64_t parameters = 0;
  // Used by one token: one row of the embedding, top_k of a layer's experts.
  int64_t active_parameters = 0;
  int64_t bytes = 0;
  // Read from memory by one decode token.
  int64_t decode_bytes = 0;

  PartCensus& operator+=(const PartCensus& other);
};

// The widest row of each kind over all layers, for sizing buffers. 0 where the
// model has no such layer.
struct PeakWidths {
  int64_t hidden = 0;
  int64_t mamba_in_proj = 0;
  int64_t mamba_conv = 0;
  int64_t mamba_inner = 0;
  int64_t attention_query = 0;
  int64_t attention_key = 0;
  int64_t dense = 0;
  int64_t experts = 0;
  int64_t top_k = 0;
  int64_t expert = 0;
  int64_t expert_input = 0;
  int64_t shared_expert = 0;
  int64_t latent = 0;
  int64_t vocab = 0;
};

struct Census {
  std::array<PartCensus, kTensorParts> parts;  // by TensorPart, without mtp
  PartCensus mtp;                              // the prediction head
  // A sequence's fixed state: last rows before the convolution, SSM state.
  int64_t conv_state_bytes = 0;
  int64_t scan_state_bytes = 0;
  int64_t kv_bytes_per_token = 0;
  PeakWidths peak;
  std::array<int64_t, 4> layers{};  // by LayerKind

  const PartCensus& part(TensorPart p) const {
    return parts[static_cast<size_t>(p)];
  }
  // Without the prediction head, which a token does not pass through.
  PartCensus model() const;
  // Everything stored.
  PartCensus total() const;
  int64_t state_bytes() const { return conv_state_bytes + scan_state_bytes; }
};

// Of an open checkpoint: each tensor with the type it is stored in.
Census TakeCensus(const Checkpoint& checkpoint);

// Of a configuration alone, as if every tensor were stored as `dtype`; the head
// is tied when the configuration says so.
Census TakeCensus(const ModelConfig& config, DType dtype);

}  // namespace trunkline::model
