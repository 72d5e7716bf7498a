#pragma once

// What `trunkline inspect` says about a checkpoint. Pure: from an open
// checkpoint to values, and from values to text or JSON.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/census.h"
#include "model/checkpoint.h"

namespace trunkline::cli {

struct InspectReport {
  struct Layer {
    int64_t index = 0;
    model::LayerKind kind = model::LayerKind::kMamba;
    std::string shape;  // "128 experts of 1856, top 6, ..."
    int64_t parameters = 0;
    int64_t active_parameters = 0;
    int64_t bytes = 0;
  };
  std::string directory, architecture, layer_pattern, digest;
  std::string activation_dtype;
  int64_t vocab_size = 0, hidden_size = 0, max_positions = 0;
  int64_t files = 0;
  std::vector<Layer> layers;
  model::Census census;
  int64_t routed_expert_count = 0;
  int64_t routed_expert_bytes = 0;
  int64_t trunk_bytes = 0;
  int64_t mtp_bytes = 0;
};

InspectReport MakeInspectReport(const model::Checkpoint& checkpoint);
std::string InspectText(const InspectReport& report);
nlohmann::json InspectJson(const InspectReport& report);

}  // namespace trunkline::cli
