#pragma once

// Which tensors a checkpoint of one configuration must hold, what shape each
// has, and who owns it. Pure: a function of the layer table. The loader
// compares files against this list, the census counts it, the synthesiser
// writes it.

#include <cstdint>
#include <string>
#include <vector>

#include "common/ids.h"
#include "model/model_config.h"

namespace trunkline::model {

// Who owns a tensor. kMtp tensors are checked for shape and left on disk until
// speculation uses them.
enum class TensorRole : uint8_t { kTrunk, kRoutedExpert, kMtp };
absl::string_view TensorRoleName(TensorRole role);  // "trunk", "expert", "mtp"

// What a tensor does; one row of the census each.
enum class TensorPart : uint8_t {
  kEmbedding,
  kMamba,
  kAttention,
  kRouter,
  kRoutedExperts,
  kSharedExpert,
  kLatent,
  kDense,
  kNorm,
  kHead,
};
inline constexpr int kTensorParts = 10;
absl::string_view TensorPartName(TensorPart part);  // "routed experts", ...

// Which element types a tensor may have.
enum class TensorTyping : uint8_t {
  kProjection,  // all projections of a checkpoint have one type
  kSmall,       // that type or F32: norms, A_log, D, dt_bias, router, conv
};

struct TensorSpec {
  std::string name;  // canonical
  std::vector<int64_t> shape;
  TensorRole role = TensorRole::kTrunk;
  TensorPart part = TensorPart::kNorm;
  TensorTyping typing = TensorTyping::kProjection;
  LayerIndex layer;  // invalid outside layers; the head's own index for kMtp
  ExpertId expert;   // valid for per-expert tensors
};

// Every tensor of the model: embedding, layers in order, final norm, head,
// prediction head. The head is listed always; a checkpoint with a tied one
// stores no tensor for it.
std::vector<TensorSpec> ExpectedTensors(const ModelConfig& config);

inline constexpr absl::string_view kEmbeddingName = "embeddings.weight";
inline constexpr absl::string_view kHeadName = "lm_head.weight";

}  // namespace trunkline::model
