#pragma once

// The inverse of ParseModelConfig: a layer table as a config.json.

#include <string>

#include "absl/status/statusor.h"
#include "common/dtype.h"
#include "model/model_config.h"

namespace trunkline::model {

enum class LayerTableSpelling {
  kPattern,   // hybrid_override_pattern
  kNames,     // layers_block_type
  kNamesNew,  // layers_block_type with linear_attention and full_attention
  kBlocks,    // block_configs: layers may differ in size
};

// INVALID_ARGUMENT when the spelling can not say this table (layers of one kind
// that differ, which only kBlocks can say, and only for experts, dense widths
// and windows), and for every other table that ParseModelConfig would refuse.
absl::StatusOr<std::string> ConfigJson(const ModelConfig& config, DType dtype,
                                       LayerTableSpelling spelling);

}  // namespace trunkline::model
