#pragma once

// Writes a checkpoint with random weights: any layer table, any size, streamed
// to disk. Every element is a function of (seed, tensor name, index), computed
// without libm, so the same spec gives the same bytes on every machine,
// whatever the sharding. Scales keep activations finite through any depth.

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/dtype.h"
#include "common/thread_pool.h"
#include "model/config_json.h"
#include "model/model_config.h"

namespace trunkline::model {

struct SynthesisSpec {
  // Layers, sizes, ids. config.wrapped writes an omni wrapper around it;
  // tie_word_embeddings leaves the head out.
  ModelConfig config;
  DType dtype = DType::kBF16;        // projections and the rest
  DType router_dtype = DType::kF32;  // router gates; their
                                     // correction biases are F32
  uint64_t seed = 0;
  LayerTableSpelling spelling = LayerTableSpelling::kPattern;
  std::string trunk_prefix = "backbone.";  // or "model."
  bool stacked_experts = false;            // [experts, width, input] tensors
  int64_t shard_bytes_max = 0;  // 0: one file; else shards and an index
};

// bytes written so far, bytes in all.
using SynthesisProgress = std::function<void(int64_t, int64_t)>;

// Creates the directory (its parent exists) or takes an empty one, and writes
// config.json, generation_config.json, tokenizer.json and the weights, on the
// pool's threads (null: on the caller's). INVALID_ARGUMENT when the
// configuration can not be written in the spelling; ALREADY_EXISTS when the
// directory is not empty; RESOURCE_EXHAUSTED when the disk has no room for it,
// which is looked at before the first byte is written.
absl::Status SynthesizeCheckpoint(const SynthesisSpec& spec,
                                  const std::string& directory,
                                  const SynthesisProgress& progress = nullptr,
                                  ThreadPool* pool = nullptr);

// A byte-level BPE tokenizer without merges: three special tokens, the 256
// bytes, then made-up words, so that every id of the vocabulary has a text.
// INVALID_ARGUMENT below 259 ids.
absl::StatusOr<std::string> SyntheticTokenizerJson(int64_t vocab_size);

// Element `index` of tensor `name` (canonical); shape as in ExpectedTensors.
class SyntheticTensor {
 public:
  SyntheticTensor(uint64_t seed, absl::string_view name,
                  const std::vector<int64_t>& shape);
  float At(int64_t index) const;

 private:
  uint64_t stream_ = 0;
  double center_ = 0;
  double spread_ = 0;  // half width of the uniform distribution
};

}  // namespace trunkline::model
