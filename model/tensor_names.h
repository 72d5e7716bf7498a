#pragma once

// Writers of checkpoints prefix the same tensors differently; the loader knows
// one name for each. Pure.

#include <string>

#include "absl/strings/string_view.h"

namespace trunkline::model {

struct CanonicalName {
  enum class Kind {
    kTensor,   // `name` is the canonical one
    kDropped,  // belongs to the image or sound side of a wrapper
    kUnknown,  // no writer's spelling
  };
  Kind kind = Kind::kUnknown;
  std::string name;
};

// "backbone.layers.0.norm.weight", "model.layers.0.norm.weight" and
// "language_model.backbone.layers.0.norm.weight" are "layers.0.norm.weight";
// "embed_tokens" is "embeddings". Only a wrapped model may hold tensors that
// are dropped.
CanonicalName CanonicalTensorName(absl::string_view stored, bool wrapped);

// "layers.1.mixer.experts.7.up_proj.weight" lies, in a checkpoint with stacked
// experts, inside "layers.1.mixer.experts.up_proj". Empty for other names.
std::string StackedExpertsName(absl::string_view canonical);

}  // namespace trunkline::model
