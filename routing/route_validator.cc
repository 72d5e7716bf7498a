// Names and entry points. The checks: record_shape.cc, selection_checks.cc,
// handoff_checks.cc, execution_checks.cc.

#include "routing/route_validator.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "routing/layer_checks.h"

namespace trunkline::routing {
namespace {

constexpr char kContractPayload[] = "trunkline.route_contract";

}  // namespace

absl::string_view Name(RouteContract contract) {
  switch (contract) {
    case RouteContract::kShapes:
      return "shapes";
    case RouteContract::kStableKey:
      return "stable key";
    case RouteContract::kDegree:
      return "route degree";
    case RouteContract::kDistinctExperts:
      return "distinct experts";
    case RouteContract::kSelection:
      return "selection";
    case RouteContract::kSelectedGates:
      return "selected gates";
    case RouteContract::kGroupIdentity:
      return "group identity";
    case RouteContract::kDropless:
      return "dropless";
    case RouteContract::kAdmission:
      return "admission";
    case RouteContract::kGatesKept:
      return "gates kept";
    case RouteContract::kConservation:
      return "conservation";
    case RouteContract::kHandoffRoutes:
      return "hand-off routes";
    case RouteContract::kHandoffOrder:
      return "hand-off order";
    case RouteContract::kLocalRows:
      return "local rows";
    case RouteContract::kOffsets:
      return "offsets";
    case RouteContract::kRepresentation:
      return "representation";
    case RouteContract::kCoverageClaim:
      return "coverage claim";
    case RouteContract::kPaddingClaim:
      return "padding claim";
    case RouteContract::kPhysicalPlan:
      return "physical plan";
    case RouteContract::kCompletion:
      return "completion";
    case RouteContract::kRowIdentity:
      return "row identity";
    case RouteContract::kRowGates:
      return "row gates";
    case RouteContract::kPadding:
      return "padding";
    case RouteContract::kCombine:
      return "combine";
    case RouteContract::kSoftAxes:
      return "soft axes";
    case RouteContract::kSoftScope:
      return "soft scope";
    case RouteContract::kPeak:
      return "peak";
    case RouteContract::kTraffic:
      return "traffic";
    case RouteContract::kLifetimes:
      return "lifetimes";
    case RouteContract::kMeasured:
      return "measured";
    case RouteContract::kReplay:
      return "replay";
  }
  return "unknown";
}

std::vector<RouteContract> AllRouteContracts() {
  std::vector<RouteContract> all;
  for (uint8_t c = 0; c <= static_cast<uint8_t>(RouteContract::kReplay); ++c)
    all.push_back(static_cast<RouteContract>(c));
  return all;
}

absl::Status BrokenContract(RouteContract contract, absl::string_view why) {
  absl::Status status = absl::InternalError(
      absl::StrCat("broken contract \"", Name(contract), "\": ", why));
  status.SetPayload(kContractPayload,
                    absl::Cord(absl::StrCat(static_cast<int>(contract))));
  return status;
}

std::optional<RouteContract> BrokenContractOf(const absl::Status& status) {
  const absl::optional<absl::Cord> payload =
      status.GetPayload(kContractPayload);
  if (!payload.has_value()) return std::nullopt;
  for (RouteContract contract : AllRouteContracts()) {
    if (*payload == absl::StrCat(static_cast<int>(contract))) return contract;
  }
  return std::nullopt;
}

absl::Status ToStatus(const Violation& v) {
  return absl::InvalidArgumentError(
      absl::StrCat("broken contract \"", Name(v.contract), "\": ", v.detail));
}

const std::vector<RouteCheck>& LayerChecks() {
  static const std::vector<RouteCheck>* const kChecks = [] {
    auto* checks = new std::vector<RouteCheck>;
    checks->push_back({RouteContract::kShapes, BrokenShape});
    for (auto part : {SelectionChecks, HandoffChecks, ExecutionChecks}) {
      for (RouteCheck& c : part()) checks->push_back(std::move(c));
    }
    return checks;
  }();
  return *kChecks;
}

std::optional<Violation> FindViolation(std::span<const RouteCheck> checks,
                                       const LayerRecord& record,
                                       const ExecutionEvidence* evidence) {
  const bool shaped = !BrokenShape(record, evidence).has_value();
  for (const RouteCheck& check : checks) {
    // The other checks index by what the shapes promise.
    if (!shaped && check.contract != RouteContract::kShapes) continue;
    if (std::optional<std::string> why = check.broken(record, evidence)) {
      return Violation{check.contract, *std::move(why)};
    }
  }
  return std::nullopt;
}

absl::Status ValidateLayer(const LayerRecord& record,
                           const ExecutionEvidence* evidence) {
  const auto violation = FindViolation(LayerChecks(), record, evidence);
  return violation ? ToStatus(*violation) : absl::OkStatus();
}

absl::Status CheckStepInvariants(const RouterPolicy& policy,
                                 const RouteTable& table, int64_t dropped) {
  const auto broken = [](RouteContract contract, const auto&... why) {
    return BrokenContract(contract, absl::StrCat(why...));
  };
  const auto rows = static_cast<uint64_t>(table.rows);
  const auto k = static_cast<uint64_t>(policy.top_k);
  const uint64_t routes = rows * k;
  if (table.token_id.size() != routes || table.selected_slot.size() != routes ||
      table.expert_id.size() != routes || table.gate.size() != routes ||
      table.fate.size() != routes) {
    return broken(RouteContract::kDegree, table.token_id.size(), " routes of ",
                  rows, " rows with ", k, " each");
  }
  uint64_t tokens = 0;
  uint64_t slots = 0;
  uint64_t accepted = 0;
  uint32_t largest = 0;
  double gates = 0.0, kept = 0.0;
  for (size_t r = 0; r < routes; ++r) {
    tokens += table.token_id[r];
    slots += table.selected_slot[r];
    const bool runs = table.fate[r] == RouteFate::kAccepted;
    accepted += runs ? 1 : 0;
    largest = std::max(largest, table.expert_id[r].value);
    const auto gate = static_cast<double>(table.gate[r]);
    gates += gate;
    kept += runs ? gate : 0.0;
  }
  if (routes > 0 && largest >= policy.experts) {
    return broken(RouteContract::kSelection, "expert ", largest, " of ",
                  policy.experts);
  }
  // Sums that every table in (token, slot) order has.
  const uint64_t token_sum = rows == 0 ? 0 : k * (rows * (rows - 1) / 2);
  if (tokens != token_sum || slots != rows * (k * (k - 1) / 2)) {
    return broken(RouteContract::kStableKey, "tokens sum to ", tokens,
                  ", slots to ", slots, " over ", rows, " rows with ", k);
  }
  if (accepted + static_cast<uint64_t>(dropped) != routes) {
    return broken(
        dropped == 0 ? RouteContract::kDropless : RouteContract::kConservation,
        accepted, " of ", routes, " routes are accepted, ", dropped,
        " are dropped");
  }
  if (!std::isfinite(gates)) {
    return broken(RouteContract::kSelectedGates, "a gate is not finite");
  }
  const double mass =
      static_cast<double>(rows) * static_cast<double>(policy.scale);
  // Each row sums to the scale within a few roundings, unless all of its
  // scores vanish, where the epsilon of the policy takes the mass.
  if (policy.normalize && kept > mass * (1.0 + 1e-4)) {
    return broken(RouteContract::kSelectedGates, "gates sum to ", kept,
                  " where normalised ones sum to at most ", mass);
  }
  return absl::OkStatus();
}

}  // namespace trunkline::routing
