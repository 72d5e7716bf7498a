#pragma once

// A recorded layer, routed again: with its own contract, to prove that the
// record is what the policy makes; with another, to compare; or along one
// coordinate with everything else frozen. Pure.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "routing/contract_comparison.h"
#include "routing/layer_record.h"
#include "routing/route_ledger.h"

namespace trunkline::routing {

RoutingContract ContractOf(const LayerRecord& record);

// The recorded input under `contract`. Identities, bias, noise and draws are
// used where the policy has a use for them; noise or draws that it needs and
// the record lacks are an error. A policy with another transform needs logits:
// INVALID_ARGUMENT when the record holds scores.
absl::StatusOr<LayerRecord> Reroute(const LayerRecord& recorded,
                                    const RoutingContract& contract);

// The first route that differs: key, expert, fate, gate bits; nothing when the
// two are equal.
std::optional<std::string> FirstDifference(const LayerRecord& a,
                                           const LayerRecord& b);
// Routes again with the record's own contract. DATA_LOSS naming the first
// route that differs.
absl::Status ProveEqual(const LayerRecord& recorded);

// Where experts would run: owners of the experts for a table, given a number of
// workers and of replicas an expert. The caller brings the placement.
using PlaceExperts = std::function<absl::StatusOr<std::vector<WorkerId>>(
    const RouteTable& table, int64_t workers, int64_t replicas)>;

struct ReplaySetup {
  RoutingContract contract;
  int64_t width = 0;  // of a hidden row
  int64_t workers = 1;
  int64_t replicas = 1;
  LinkCosts link;
  PlaceExperts place;
  // 0: as recorded. s: the first s x rows tokens get the scores of the first
  // one, so that their routes gather on its experts.
  double skew = 0.0;
};

struct ReplayResult {
  LayerRecord record;
  RouteLedger ledger;
  LayoutLedger layout;
  std::vector<WorkerLoad> workers;
  std::vector<StageBytes> traffic;  // reference traffic, an operation ledger
  std::vector<StageBytes> live;     // live payload by stage
  int64_t retained_bytes = 0;  // what the contract keeps for a backward pass
};
absl::StatusOr<ReplayResult> Replay(const LayerRecord& recorded,
                                    const ReplaySetup& setup);

enum class SweepCoordinate : uint8_t {
  kCapacityFactor = 0,
  kSkew = 1,
  kGroupTokens = 2,
  kBlockRows = 3,
  kReplicas = 4,
  kWorkers = 5,
};
absl::string_view Name(SweepCoordinate v);
absl::StatusOr<SweepCoordinate> ParseSweepCoordinate(absl::string_view name);

struct SweepPoint {
  double value = 0.0;
  ReplayResult result;
};
struct Sweep {
  SweepCoordinate coordinate;
  // The coordinates that stand still, with their values: "workers = 4".
  std::vector<std::string> frozen;
  std::vector<SweepPoint> points;
};
// A capacity factor needs an admission that has one, a block size a form that
// has one; whole numbers where the coordinate counts.
absl::StatusOr<Sweep> SweepOne(const LayerRecord& recorded,
                               const ReplaySetup& setup,
                               SweepCoordinate coordinate,
                               const std::vector<double>& values);

// The same numbers for people.
struct TextTable {
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
};
std::string Render(const TextTable& table);  // aligned, one line a row
TextTable SummaryTable(const std::vector<std::string>& names,
                       const std::vector<const ReplayResult*>& results);
TextTable ExpertTable(const ReplayResult& result);
TextTable WorkerTable(const ReplayResult& result);
TextTable SweepTable(const Sweep& sweep);
TextTable ComparisonTable(const ContractComparison& comparison);

}  // namespace trunkline::routing
