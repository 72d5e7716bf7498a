#pragma once

// Every field of a configuration that the arithmetic depends on, as text: two
// configurations mean the same model exactly when their texts are equal. Pure.

#include <string>

#include "model/model_config.h"

namespace trunkline::model {

std::string SemanticConfigText(const ModelConfig& config);

}  // namespace trunkline::model
