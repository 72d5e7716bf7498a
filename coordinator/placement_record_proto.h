#pragma once

// The store's records as bytes and back (proto/placement_store.proto). Pure.
// What does not parse or makes no sense is DATA_LOSS that says which field.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/placement_store.h"

namespace trunkline::coordinator {

std::string EncodeCluster(const ClusterRecord& cluster);  // without the epoch
std::string EncodeWorker(const WorkerRecord& worker);     // without its id
// Of one placement: what changes, and the map, which never does.
std::string EncodePlacement(const PlacementRecord& placement);
std::string EncodeMap(const placement::PlacementMap& map);  // without version
std::string EncodeHistory(const HistoryRecord& entry);  // without its sequence

absl::StatusOr<ClusterRecord> DecodeCluster(const std::string& bytes);
absl::StatusOr<WorkerRecord> DecodeWorker(const std::string& bytes);
absl::StatusOr<PlacementRecord> DecodePlacement(const std::string& bytes);
absl::StatusOr<placement::PlacementMap> DecodeMap(const std::string& bytes);
absl::StatusOr<HistoryRecord> DecodeHistory(const std::string& bytes);

}  // namespace trunkline::coordinator
