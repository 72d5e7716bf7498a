#pragma once

// The true shapes of the family's releases, for checkpoints with random weights
// (`trunkline synthesize`). Pure.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/synthesize.h"

namespace trunkline::model {

// "nano", "lightning", "super", "ultra", "tiny".
std::vector<std::string> ShapeNames();

// Layers, sizes, ids, spelling and router type as the release of that name has
// them; BF16, seed 0. INVALID_ARGUMENT that lists the names.
//   nano       Nemotron 3 Nano 30B-A3B
//   lightning  Nemotron 3.5 Lightning 30B-A3B: nano with a prediction head
//   super      Nemotron 3 Super 120B-A12B: latent experts, prediction head
//   ultra      Nemotron 3 Ultra 550B-A55B. Its heads, Mamba width, shared width
//              and scale are not published in what we read; those here make
//              549 B parameters, 55 B of them active.
//   tiny       the smallest with every layer kind, for tests
absl::StatusOr<SynthesisSpec> NamedShape(absl::string_view name);

// The shape that an existing configuration has.
SynthesisSpec ShapeOf(const ModelConfig& config);

// Another layer table out of the same layers: M, E, * and - each as the first
// such layer of the shape is. INVALID_ARGUMENT for a letter that is none, or
// whose kind the shape does not have.
absl::Status SetLayers(absl::string_view pattern, ModelConfig* config);

}  // namespace trunkline::model
