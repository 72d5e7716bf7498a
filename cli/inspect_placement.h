#pragma once

// A placement held against a checkpoint: what each worker would keep in memory.
// Pure: an open checkpoint and a document in, values out.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/checkpoint.h"

namespace trunkline::cli {

struct PlacementReport {
  struct Worker {
    uint32_t id = 0;
    std::string name;  // "" when the document has none
    int64_t experts = 0;
    int64_t expert_bytes = 0;
  };
  struct Layer {
    int64_t index = 0;
    int64_t experts = 0;
    int64_t copies = 0;  // of all its experts
    // Four quantities with their own units, none made from another.
    int64_t stored_parameters = 0;  // router and all experts
    int64_t router_parameters = 0;
    int64_t active_parameters = 0;  // router and the experts of one token
    int64_t active_flops = 0;       // of one token
    int64_t resident_bytes = 0;     // of all copies, and the router once
  };
  std::string file;
  uint64_t version = 0;  // 0: the document has none
  int64_t trunk_bytes = 0;
  std::vector<Worker> workers;
  std::vector<Layer> layers;
};

// INVALID_ARGUMENT naming the document's fault: a layer that is no moe layer or
// is missing, an expert without an owner or with two copies on one worker.
absl::StatusOr<PlacementReport> MakePlacementReport(
    const model::Checkpoint& checkpoint, absl::string_view document,
    const std::string& file);
std::string PlacementText(const PlacementReport& report);
nlohmann::json PlacementReportJson(const PlacementReport& report);

}  // namespace trunkline::cli
