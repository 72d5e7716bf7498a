#pragma once

// Compares what the files hold with what the layer table asks for.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/checkpoint.h"
#include "model/safetensors_file.h"

namespace trunkline::model {

struct MatchedTensors {
  std::vector<TensorInfo> tensors;  // in the order of ExpectedTensors
  DType projection_dtype = DType::kF32;
  bool head_stored = false;
};

// Pure but for the files' headers. INVALID_ARGUMENT names the first missing,
// misshapen, wrongly typed or surplus tensor.
absl::StatusOr<MatchedTensors> MatchTensors(
    const ModelConfig& config,
    const std::vector<std::shared_ptr<const SafetensorsFile>>& files,
    const std::string& directory);

}  // namespace trunkline::model
