#pragma once

// Whether one layer's sizes fit together: nothing is zero, everything that is
// divided divides, the router can choose as many experts as it must.

#include <string>

#include "model/json_text.h"
#include "model/model_config.h"

namespace trunkline::model {

// Fails `text` with "FILE: PLACE (KIND): what is wrong".
void CheckLayer(JsonFields* text, const std::string& place,
                const LayerSpec& layer);

}  // namespace trunkline::model
