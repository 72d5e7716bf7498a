#pragma once

// A Hugging Face checkpoint directory: config.json, model.safetensors or shards
// with an index, tokenizer.json, generation_config.json. Opening reads headers
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
#include "model/model_config.h"

namespace trunkline::model {

// Who owns a tensor. kMtp tensors are checked for shape and left on disk until
// speculation uses them.
enum class TensorRole : uint8_t { kTrunk, kRoutedExpert, kMtp };

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
  // table. The first fault ends the load with an error that names it.
  // FAILED_PRECONDITION or INVALID_ARGUMENT or NOT_FOUND as fits.
  static absl::StatusOr<std::shared_ptr<const Checkpoint>> Open(
      const std::string& directory);

  virtual ~Checkpoint() = default;
  virtual const std::string& directory() const = 0;
  virtual const ModelConfig& config() const = 0;
  virtual const GenerationDefaults& generation_defaults() const = 0;
  virtual const std::vector<TensorInfo>& tensors() const = 0;
  // The type rows are rounded to: BF16 when the projections are BF16, else F32.
  virtual DType activation_dtype() const = 0;
  // Hex digest of config and tensor names, types, shapes and offsets: the same
  // directory content gives the same digest on every machine. Workers of one
  // cluster must agree on it.
  virtual const std::string& digest() const = 0;

  // Trunk weights: everything but routed experts and mtp.
  virtual absl::StatusOr<std::unique_ptr<WeightMap>> MapTrunk() const = 0;
  // The up and down weights of one routed expert: canonical names
  // "layers.L.mixer.experts.E.up_proj.weight" [width, input] and
  // "...down_proj.weight" [input, width], also when the file stores experts
  // stacked ([E, I, X]).
  virtual absl::StatusOr<std::unique_ptr<WeightMap>> MapExpert(
      LayerIndex layer, ExpertId expert) const = 0;
};

}  // namespace trunkline::model
