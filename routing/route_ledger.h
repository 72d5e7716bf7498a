#pragma once

// The books of a routed layer. Four ledgers stay apart and none is derived from
// another: what is stored, what is active for a token, what is computed, and
// what is resident or moved (residency_ledger.h has the first and the last).
// Selected and executed counts are two series. Pure.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/ids.h"
#include "routing/admission.h"
#include "routing/representation.h"
#include "routing/route_table.h"

namespace trunkline::routing {

// Summaries of a load, and no more than summaries.
struct LoadSummary {
  int64_t total = 0;
  int64_t largest = 0;
  double cv_squared = 0.0;  // variance / mean^2; 0 without load
  double entropy = 0.0;     // of the shares, / ln(experts); 1 is uniform
};
LoadSummary Summarize(std::span<const int64_t> counts);

// What a capacity does to counts, whoever is chosen.
struct CapacityLedger {
  int64_t capacity = 0;
  int64_t reserved = 0;  // experts x capacity
  int64_t accepted = 0;
  int64_t dropped = 0;
  int64_t unused = 0;
  double utilization = 0.0;  // accepted / reserved
  std::vector<int64_t> accepted_of_expert;
  std::vector<int64_t> overflow_of_expert;
};
CapacityLedger ApplyCapacity(std::span<const int64_t> counts, int64_t capacity);

struct RouteLedger {
  int64_t rows = 0;
  int64_t experts = 0;
  int64_t requested = 0;  // all routes of the table
  int64_t accepted = 0;
  int64_t dropped = 0;
  int64_t not_drawn = 0;
  int64_t rerouted = 0;
  int64_t unused = 0;        // of reserved rows; 0 when dropless
  double utilization = 1.0;  // accepted / reserved; 1 when dropless
  int64_t uncovered = 0;     // tokens without an accepted route
  double selected_gate_mass = 0.0;
  double executed_gate_mass = 0.0;
  std::vector<int64_t> selected;  // [experts] as the policy chose
  std::vector<int64_t> executed;  // [experts] as admission left it
  LoadSummary selected_load;
  LoadSummary executed_load;
};
// After AdmitRoutes.
RouteLedger TakeLedger(const RouteTable& table, const AdmissionReport& report);

struct LayoutLedger {
  int64_t semantic_rows = 0;
  int64_t represented_rows = 0;
  int64_t tail_rows = 0;
};
LayoutLedger TakeLedger(const RowLayout& layout);

// Per worker, under one owner an expert: what would go over each link.
struct LinkCosts {
  int64_t row_bytes = 0;     // a row sent to a worker, once a worker
  int64_t answer_bytes = 0;  // a row that comes back, one a route
  int64_t route_bytes = 0;   // metadata of a route
  int64_t frame_bytes = 0;   // header and fixed parts, once a worker and way
};
struct WorkerLoad {
  WorkerId worker;
  int64_t distinct_experts = 0;
  int64_t routes = 0;
  int64_t rows = 0;  // distinct tokens
  int64_t bytes_out = 0;
  int64_t bytes_back = 0;
};
// owner_of_expert: [experts]. Ascending by worker; a worker without a route has
// no entry. A planned quantity, not a measurement.
absl::StatusOr<std::vector<WorkerLoad>> LoadPerWorker(
    const RouteTable& table, std::span<const WorkerId> owner_of_expert,
    const LinkCosts& costs);

// The operation ledger of one layer with materialised buffers: bytes that each
// stage reads and writes by definition. It says nothing of caches, links or
// time.
struct TrafficShape {
  int64_t tokens = 0;
  int64_t experts = 0;
  int64_t top_k = 0;
  int64_t width = 0;
  int64_t routes = 0;       // accepted
  int64_t represented = 0;  // rows after padding
  int64_t activation_bytes = 2;
  int64_t output_bytes = 2;
  int64_t score_bytes = 4;
  int64_t gate_bytes = 4;
  int64_t index_bytes = 4;
  int64_t count_bytes = 4;
  int64_t prefix_bytes = 4;
};
struct StageBytes {
  std::string stage;
  int64_t bytes = 0;
};
std::vector<StageBytes> ReferenceTraffic(const TrafficShape& shape);

// The live payload of each stage: the sum of the buffers alive in it. The peak
// is a maximum over stages, never a sum over buffers.
struct BufferLife {
  std::string name;
  int64_t bytes = 0;
  int first_stage = 0;
  int last_stage = 0;
};
std::vector<BufferLife> LayerBuffers(const TrafficShape& shape);
std::vector<StageBytes> LivePayload(const TrafficShape& shape);
StageBytes PeakPayload(const TrafficShape& shape);

// What a backward pass would keep: every saved buffer, or the input and the
// routing decisions from which the rest is computed again.
struct Retention {
  int64_t save_bytes = 0;
  int64_t rematerialize_bytes = 0;
};
Retention RetainedBytes(const TrafficShape& shape);

}  // namespace trunkline::routing
