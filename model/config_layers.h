#pragma once

// From the text part of config.json to the layer table: which kind each layer
// is, and its sizes from its own block or from the globals.

#include <vector>

#include "model/json_text.h"
#include "model/model_config.h"

namespace trunkline::model {

// Bounds on what a configuration may claim, far above every model of the
// family. They keep every count that is made from a table (parameters, bytes,
// state of a sequence) inside int64, and a hostile file from claiming memory
// without end.
inline constexpr int64_t kDimensionMax = int64_t{1} << 20;
inline constexpr int64_t kPositionsMax = int64_t{1} << 27;
inline constexpr int64_t kExpertsMax = int64_t{1} << 16;
inline constexpr int64_t kLayersMax = 4096;
inline constexpr int64_t kExpertsOfAllLayersMax = int64_t{1} << 18;

// The spellings of section 1.3 of the family's configuration, on `text`.
void AddConfigAliases(JsonFields* text);

// Fills config->layers and config->mtp_layers, or fails `text`.
void ReadLayers(JsonFields* text, ModelConfig* config);

}  // namespace trunkline::model
