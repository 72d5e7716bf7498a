#pragma once

// The sizes that config.json states once for all layers of a kind.

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "model/json_text.h"
#include "model/model_config.h"

namespace trunkline::model {

struct LayerGlobals {
  MambaShape mamba;
  AttentionShape attention;
  MoeShape moe;
  std::vector<int64_t> dense_widths;
  int64_t shared_experts = 1;
  std::set<std::string> blockwise;  // live per block: no global stands for them
};

// With the family's defaults where a field is absent. Fails `text` on a field
// of the wrong type; whether sizes fit together is judged per layer, since a
// model need not have layers of every kind.
LayerGlobals ReadLayerGlobals(JsonFields* text);

}  // namespace trunkline::model
