#pragma once

// Holds a recorded layer to its contracts. Two strengths:
// - CheckStepInvariants: counts and sums of a serving route table, always on;
// - ValidateLayer: every contract in full, by computing again what the record
//   says was computed. Used with --validate-routes, by replay and by tests.
// A refusal names the contract that is broken. Pure.

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "routing/layer_record.h"
#include "routing/route_ledger.h"
#include "routing/router_policy.h"

namespace trunkline::routing {

enum class RouteContract : uint8_t {
  kShapes,           // arrays of one record have the lengths they say
  kStableKey,        // (token, slot) ascends and is unique
  kDegree,           // as many routes as the owner of the choice has budget for
  kDistinctExperts,  // a token has an expert once
  kSelection,        // the experts are those that the recorded policy chooses
  kSelectedGates,    // and the gates those that it computes
  kGroupIdentity,    // the routing group of every token is known
  kDropless,         // a dropless layer drops nothing
  kAdmission,        // fates and experts are those of the recorded admission
  kGatesKept,        // admission changes gates only by a named rule
  kConservation,     // requested = accepted + dropped + not drawn; counts agree
  kHandoffRoutes,    // the accepted routes are handed over, each once, no other
  kHandoffOrder,     // in (expert, token, slot) order
  kLocalRows,        // an expert's rows are 0.. without holes
  kOffsets,          // monotone, the last one is the accepted count
  kRepresentation,   // represented and tail rows are those of the form
  kCoverageClaim,    // a claim that every token is covered is true
  kPaddingClaim,     // a claim of no padding is true
  kPhysicalPlan,  // version, one worker an expert, one row a token and worker
  kCompletion,    // every accepted route is done, with its own answer row
  kRowIdentity,   // a packed row is its token's hidden row, bit for bit
  kRowGates,      // a packed row has its own route's gate
  kPadding,       // padding rows are zero and have no gate
  kCombine,       // ascending expert id, added, nothing else: bit for bit
  kSoftAxes,      // soft: slots sum to one over tokens, tokens over slots
  kSoftScope,     // soft: a slot mixes tokens of one request only
  kPeak,          // a peak is the largest stage, not a sum of buffers
  kTraffic,       // bytes of a stage by its formula
  kLifetimes,     // a buffer lives until its last use
  kMeasured,      // bytes on links and times are measured, not derived
  kReplay,        // recovery keeps ids, gates, tie and noise state
};
absl::string_view Name(RouteContract contract);
// Every contract, in the order above.
std::vector<RouteContract> AllRouteContracts();

// INTERNAL naming the contract, for a step of our own that broke it. The status
// says so to those who count (also through Annotate).
absl::Status BrokenContract(RouteContract contract, absl::string_view why);
std::optional<RouteContract> BrokenContractOf(const absl::Status& status);

// Rows as the experts saw them. Spans outlive the call.
struct ExecutionEvidence {
  int64_t width = 0;
  std::span<const float> hidden;    // [rows, width]
  std::span<const float> input;     // [represented rows, width]
  std::span<const float> row_gate;  // [represented rows], 0 for padding
  std::span<const float> output;    // [represented rows, width]
  std::span<const float> combined;  // [rows, width]
  bool output_gated = false;  // output is what a row adds: gate x expert output
  bool combined_bf16 = false;  // the sum was rounded once, to bf16
};

struct Violation {
  RouteContract contract;
  std::string detail;
};
absl::Status ToStatus(const Violation& violation);  // INVALID_ARGUMENT

// One contract's check. Evidence may be null.
struct RouteCheck {
  RouteContract contract;
  std::function<std::optional<std::string>(const LayerRecord&,
                                           const ExecutionEvidence*)>
      broken;  // why, or nothing
};
// All checks of a layer, in the order in which they are made.
const std::vector<RouteCheck>& LayerChecks();
// The first broken contract. After a shape that does not fit nothing else is
// looked at.
std::optional<Violation> FindViolation(std::span<const RouteCheck> checks,
                                       const LayerRecord& record,
                                       const ExecutionEvidence* evidence);
absl::Status ValidateLayer(const LayerRecord& record,
                           const ExecutionEvidence* evidence = nullptr);

std::optional<Violation> FindSoftViolation(
    const SoftAssignment& assignment,
    std::span<const uint32_t> request_of_token,
    std::span<const uint32_t> request_of_slot);

// What is said about a layer's bytes, to be held against its shape.
struct ByteClaims {
  int64_t peak_bytes = 0;
  std::vector<StageBytes> traffic;
  std::vector<BufferLife> lifetimes;
  int64_t network_bytes = 0;      // 0: nothing is claimed
  bool network_measured = false;  // counted on the link
  double runtime_seconds = 0.0;   // 0: nothing is claimed
  bool runtime_measured = false;  // read from a clock
};
std::optional<Violation> FindByteViolation(const TrafficShape& shape,
                                           const ByteClaims& claims);

// Recovery: the routes used again are those of the record.
std::optional<Violation> FindReplayViolation(const LayerRecord& recorded,
                                             const LayerRecord& recovered);

// The always-on part, for a serving table after its admission: sizes, ranges,
// sums of tokens, slots and gates, the number accepted. `dropped` is what the
// admission says it dropped. INTERNAL naming the contract.
absl::Status CheckStepInvariants(const RouterPolicy& policy,
                                 const RouteTable& table, int64_t dropped = 0);

}  // namespace trunkline::routing
