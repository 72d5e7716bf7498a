#pragma once

// A Hugging Face checkpoint directory: config.json, model.safetensors or shards
// with an index, tokenizer.json, generation_config.json. Instead of weights it
// may hold an expert manifest (expert_manifest.h); then there is nothing to
// map, and only an expert worker has a use for it. Opening reads headers
// only; weights stay on disk until a role maps what it owns: the trunk never
// touches routed experts, an expert worker never touches the trunk.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/ids.h"
#include "common/tensor_view.h"
#include "model/expert_manifest.h"
#include "model/model_config.h"
#include "model/weight_partition.h"

namespace trunkline::model {

struct TensorInfo {
  std::string
      name;  // canonical: "embeddings.weight", "layers.3.mixer.q_proj.weight",
             // "norm_f.weight", "lm_head.weight",
             // "layers.1.mixer.experts.7.up_proj.weight", "mtp.layers.0..."
  std::string stored_name;  // as in the file
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  TensorRole role = TensorRole::kTrunk;
  LayerIndex layer;    // invalid outside layers
  ExpertId expert;     // valid for per-expert tensors
  int file = 0;        // index into files()
  int64_t offset = 0;  // of the tensor's bytes in the file
  int64_t bytes = 0;
};

// The weights one role owns, mapped. Keeps the mapping alive; views point into
// it.
class WeightMap {
 public:
  virtual ~WeightMap() = default;
  // NOT_FOUND with the canonical name.
  virtual absl::StatusOr<TensorView> Find(
      const std::string& canonical_name) const = 0;
  virtual int64_t mapped_bytes() const = 0;
  // The weights are packed: give the pages back (madvise), the views stay
  // readable.
  virtual void ReleasePages() = 0;
};

class Checkpoint {
 public:
  // Validates everything that can be validated without reading weights: config,
  // every header, every offset, every name, dtype and shape against the layer
  // table. The first fault ends the load with an error that names it: NOT_FOUND
  // for a file that is not there, UNIMPLEMENTED for what is valid but not
  // supported, INVALID_ARGUMENT for the rest.
  static absl::StatusOr<std::shared_ptr<const Checkpoint>> Open(
      const std::string& directory);

  virtual ~Checkpoint() = default;
  virtual const std::string& directory() const = 0;
  virtual const ModelConfig& config() const = 0;
  virtual const GenerationDefaults& generation_defaults() const = 0;
  // In the order of ExpectedTensors. Experts that a file stores stacked are
  // listed one by one, each with its own part of the stacked bytes.
  virtual const std::vector<TensorInfo>& tensors() const = 0;
  virtual const std::vector<std::string>& files() const = 0;  // paths
  // The one type of all projections, experts and head.
  virtual DType projection_dtype() const = 0;
  // The type rows are rounded to: BF16 when the projections are BF16, else F32.
  virtual DType activation_dtype() const = 0;
  // 32 hex digits (XXH3-128): the same on every machine and for every way to
  // store the same model (shards, prefixes, stacked experts). Workers of one
  // cluster must agree on it. It covers what the arithmetic depends on: the
  // layer table and the other semantic fields of the configuration, and each
  // tensor's canonical name, element type, shape and content. Of the content
  // it takes the first and the last 4 KiB of every tensor, since hashing all
  // of a large checkpoint would take minutes: it tells one model from another
  // and one training step from the next, but does not prove that a file is
  // free of damage in the middle of a tensor.
  virtual const std::string& digest() const = 0;

  // What the experts have to be, as a manifest says; empty when the weights are
  // here.
  virtual const std::vector<ExpertChecksum>& expert_checksums() const {
    static const std::vector<ExpertChecksum> none;
    return none;
  }

  // Trunk weights: everything but routed experts and mtp. With a tied head
  // "lm_head.weight" is the embedding.
  virtual absl::StatusOr<std::unique_ptr<WeightMap>> MapTrunk() const = 0;
  // The up and down weights of one routed expert: canonical names
  // "layers.L.mixer.experts.E.up_proj.weight" [width, input] and
  // "...down_proj.weight" [input, width], also when the file stores experts
  // stacked ([E, I, X]). NOT_FOUND when there is a manifest in place of it.
  virtual absl::StatusOr<std::unique_ptr<WeightMap>> MapExpert(
      LayerIndex layer, ExpertId expert) const = 0;
};

}  // namespace trunkline::model
