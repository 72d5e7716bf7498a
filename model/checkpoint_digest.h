#pragma once

// The identity of a model that all workers of a cluster must share; see
// Checkpoint::digest().

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/checkpoint.h"
#include "model/safetensors_file.h"

namespace trunkline::model {

absl::StatusOr<std::string> ComputeDigest(
    const ModelConfig& config, const std::vector<TensorInfo>& tensors,
    const std::vector<std::shared_ptr<const SafetensorsFile>>& files);

}  // namespace trunkline::model
