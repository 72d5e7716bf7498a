#pragma once

// Where replay's layers come from, and what a row of them costs on a link.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/contract_spec.h"
#include "placement/placement_json.h"
#include "routing/replay.h"
#include "trunk_worker/route_record.h"

namespace trunkline::cli {

struct ReplaySource {
  std::string file;    // a recording, or
  std::string scores;  // a matrix
  std::vector<uint32_t> layers;
  std::optional<double> draw;
  bool recover_logits = false;
};

struct ReplayRecord {
  const routing::LayerRecord* record = nullptr;
  std::string name;  // "layer 4"
  bool completed = true;
  int64_t width = 0;
  DType row_dtype = DType::kBF16;
  // It is not said of which transform the scores are.
  bool any_transform = false;
};

// The record as the contract's policy takes it.
routing::LayerRecord InputFor(const ReplayRecord& record,
                              const routing::RoutingContract& contract);

// Calls `each` for every record in the order of the file; its first error ends
// the reading and is returned with the file's name. `header` and `trailer` may
// be null, and stay as they are for a matrix. INVALID_ARGUMENT when no record
// is of the wanted layers.
absl::Status ForEachRecord(
    const ReplaySource& source,
    const std::function<absl::Status(const ReplayRecord&)>& each,
    trunk::RecordingHeader* header = nullptr,
    trunk::RecordingTrailer* trailer = nullptr);

// The logits that have these scores: what the recorded transform undoes, in
// double, rounded once. INVALID_ARGUMENT naming a score that has none.
absl::Status RecoverLogits(routing::LayerRecord* record);

// Workers and rows of the costs.
struct ReplayCosts {
  std::string placement_file;
  int64_t workers = 1;
  int64_t replicas = 1;
  int64_t width = 0;                                 // 0: the record's
  std::optional<placement::PlacementMap> placement;  // by LoadPlacement
  // By LoadPlacement, of a recording: where each expert ran last, per layer.
  std::map<LayerIndex, std::map<ExpertId, WorkerId>> ran_on;

  bool as_recorded() const { return placement_file == "recorded"; }
  bool given() const {
    return !placement_file.empty() || workers > 1 || replicas > 1;
  }
};
// Reads the placement document, or for "recorded" the whole recording.
absl::Status LoadPlacement(const ReplaySource& source, ReplayCosts* costs);

SpecBase BaseOf(const routing::LayerRecord& record);
absl::StatusOr<routing::ReplaySetup> SetupOf(
    const routing::RoutingContract& contract, const ReplayRecord& record,
    const ReplayCosts& costs);

// One picture shows one layer.
absl::Status CheckOneLayer(size_t layers);

}  // namespace trunkline::cli
