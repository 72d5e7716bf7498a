#pragma once

// A plain matrix of router scores as a layer that can be routed. Pure.
//
//   {"scores": [[...], ...], "top_k": 2}
//   {"logits": [[...], ...], "top_k": 2}       the policy's transform is
//   applied
//   {"matrix_8x4": {"probabilities": [[...]], "top_k": 2}}   of a softmax
//
// With it may stand "bias" [experts], "draws" [tokens] and "noise" [tokens,
// experts].

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "routing/layer_record.h"

namespace trunkline::cli {

struct ScoreMatrix {
  // Routed by softmax-topk-renormalized, without drops.
  routing::LayerRecord record;
  // "scores" are taken as those of any policy's transform, "probabilities" are
  // of a softmax.
  bool any_transform = false;
  std::string name;  // "matrix_8x4" or ""
};

// INVALID_ARGUMENT naming the place: a row of another length, a number that is
// not finite. `draw`: for every token, instead of "draws".
absl::StatusOr<ScoreMatrix> ParseScoreMatrix(absl::string_view text,
                                             const std::string& file,
                                             std::optional<double> draw);

}  // namespace trunkline::cli
