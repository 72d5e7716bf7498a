#pragma once

// What `trunkline replay` says, as values first and then as text, JSON or a
// picture. Pure.

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "cli/replay_totals.h"
#include "routing/contract_comparison.h"
#include "routing/replay.h"
#include "trunk_worker/route_record.h"

namespace trunkline::cli {

// One layer under several contracts, side by side.
struct ReplayColumn {
  std::string name;  // of its policy, or "recorded"
  routing::RoutingContract contract;
  ReplayTotals totals;
};
struct ReplayLayer {
  std::string name;  // "layer 4", or of a matrix
  std::vector<ReplayColumn> columns;
};
std::string ReplayText(const ReplayLayer& layer);
nlohmann::json ReplayJson(const ReplayLayer& layer);
// Load per expert, selected and executed, of every column.
std::string ReplaySvg(const ReplayLayer& layer);

// Which experts each token of one small layer got, and how many ran.
std::string TokenText(const routing::LayerRecord& record);
nlohmann::json TokenJson(const routing::LayerRecord& record);

struct SweptLayer {
  std::string name;
  routing::RoutingContract contract;
  routing::Sweep sweep;
};
std::string SweepText(const SweptLayer& layer);
nlohmann::json SweepJson(const SweptLayer& layer);
std::string SweepSvg(const SweptLayer& layer);

// Two contracts of one layer under a claim.
struct ComparedLayer {
  std::string name;
  routing::EquivalenceClaim claim = routing::EquivalenceClaim::kRelation;
  routing::ContractComparison comparison;
};
std::string ComparisonText(const ComparedLayer& layer);
nlohmann::json ComparisonJson(const ComparedLayer& layer);

// What a file says of itself once it has been read to its end.
struct ProvenRecording {
  trunk::RecordingHeader header;
  trunk::RecordingTrailer trailer;
  int64_t records = 0;
  int64_t routes = 0;  // that were routed again and are equal
  int64_t incomplete = 0;
  // Where routes ran, for recordings of a cluster.
  struct Worker {
    int64_t routes = 0;
    int64_t retried = 0;   // after another worker was lost or refused
    int64_t replicas = 0;  // on another than the expert's first replica
  };
  std::map<WorkerId, Worker> workers;
  std::set<PlacementVersion> versions;
};
// Counts a record's physical plan.
void AddPhysical(const routing::LayerRecord& record, ProvenRecording* proven);
std::string ProvenText(const std::string& file, const ProvenRecording& proven);
nlohmann::json ProvenJson(const std::string& file,
                          const ProvenRecording& proven);

}  // namespace trunkline::cli
