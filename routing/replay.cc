#include "routing/replay.h"

#include <bit>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace trunkline::routing {
namespace {

// A record holds scores or logits; a policy with another transform can not be
// applied to the scores of this one.
absl::Status CheckTransform(const LayerRecord& recorded,
                            const PolicyRecord& policy) {
  if (!recorded.transformed || policy.transform == recorded.policy.transform) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "the record holds ", Name(recorded.policy.transform), " scores; policy ",
      policy.name, " needs logits for its transform ", Name(policy.transform)));
}

void SkewRows(double skew, LayerRecord* r) {
  const auto rows = static_cast<size_t>(r->table.rows);
  if (rows == 0) return;
  const size_t columns = r->values.size() / rows;
  const auto moved =
      static_cast<size_t>(std::ceil(skew * static_cast<double>(rows)));
  for (size_t t = 1; t < moved && t < rows; ++t) {
    for (size_t e = 0; e < columns; ++e) {
      r->values[t * columns + e] = r->values[e];
      if (!r->noise.empty()) r->noise[t * columns + e] = r->noise[e];
    }
  }
}

TrafficShape ShapeOf(const LayerRecord& r, int64_t width) {
  TrafficShape shape;
  shape.tokens = r.table.rows;
  shape.experts = r.table.experts;
  shape.top_k = r.table.top_k;
  shape.width = width;
  shape.routes = static_cast<int64_t>(r.handoff_routes.size());
  shape.represented = r.represented_rows;
  return shape;
}

bool IsCount(double v) { return v >= 1.0 && v <= 1e9 && v == std::floor(v); }

absl::Status SetCoordinate(SweepCoordinate coordinate, double value,
                           ReplaySetup* setup) {
  const auto refuse = [&](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("sweep of ", Name(coordinate), ": ", value, " ", why));
  };
  switch (coordinate) {
    case SweepCoordinate::kCapacityFactor:
      if (setup->contract.admission.kind != AdmissionKind::kFixedCapacity) {
        return refuse("has no meaning for a dropless admission");
      }
      setup->contract.admission.capacity_factor = value;
      return absl::OkStatus();
    case SweepCoordinate::kSkew:
      if (!(value >= 0.0 && value <= 1.0)) return refuse("is not in [0, 1]");
      setup->skew = value;
      return absl::OkStatus();
    case SweepCoordinate::kGroupTokens:
      if (!IsCount(value)) return refuse("is not a number of tokens");
      if (setup->contract.admission.kind != AdmissionKind::kFixedCapacity) {
        return refuse("has no meaning for a dropless admission");
      }
      setup->contract.admission.group_tokens = static_cast<int64_t>(value);
      return absl::OkStatus();
    case SweepCoordinate::kBlockRows:
      if (!IsCount(value)) return refuse("is not a number of rows");
      setup->contract.representation = {RowForm::kBlocks, 0,
                                        static_cast<int64_t>(value)};
      return absl::OkStatus();
    case SweepCoordinate::kReplicas:
      if (!IsCount(value)) return refuse("is not a number of replicas");
      setup->replicas = static_cast<int64_t>(value);
      return absl::OkStatus();
    case SweepCoordinate::kWorkers:
      if (!IsCount(value)) return refuse("is not a number of workers");
      setup->workers = static_cast<int64_t>(value);
      return absl::OkStatus();
  }
  return refuse("is of no known coordinate");
}

std::string CoordinateText(SweepCoordinate coordinate,
                           const ReplaySetup& setup) {
  const AdmissionPolicy& a = setup.contract.admission;
  const bool fixed = a.kind == AdmissionKind::kFixedCapacity;
  std::string value;
  switch (coordinate) {
    case SweepCoordinate::kCapacityFactor:
      value = fixed ? absl::StrCat(a.capacity_factor) : "none (dropless)";
      break;
    case SweepCoordinate::kSkew:
      value = absl::StrCat(setup.skew);
      break;
    case SweepCoordinate::kGroupTokens:
      value = a.group_tokens == 0 ? "all" : absl::StrCat(a.group_tokens);
      break;
    case SweepCoordinate::kBlockRows:
      value = setup.contract.representation.form == RowForm::kBlocks
                  ? absl::StrCat(setup.contract.representation.block_rows)
                  : absl::StrCat("none (",
                                 Name(setup.contract.representation.form), ")");
      break;
    case SweepCoordinate::kReplicas:
      value = absl::StrCat(setup.replicas);
      break;
    case SweepCoordinate::kWorkers:
      value = absl::StrCat(setup.workers);
      break;
  }
  return absl::StrCat(Name(coordinate), " = ", value);
}

constexpr SweepCoordinate kCoordinates[] = {
    SweepCoordinate::kCapacityFactor, SweepCoordinate::kSkew,
    SweepCoordinate::kGroupTokens,    SweepCoordinate::kBlockRows,
    SweepCoordinate::kReplicas,       SweepCoordinate::kWorkers};

}  // namespace

RoutingContract ContractOf(const LayerRecord& record) {
  RoutingContract c;
  c.policy = record.policy;
  c.admission = record.admission;
  c.representation = record.representation;
  return c;
}

absl::StatusOr<LayerRecord> Reroute(const LayerRecord& recorded,
                                    const RoutingContract& contract) {
  const PolicyRecord& policy = contract.policy;
  TL_RETURN_IF_ERROR(ValidateRecord(policy));
  TL_RETURN_IF_ERROR(CheckTransform(recorded, policy));
  LayerRecord r;
  r.step = recorded.step;
  r.layer = recorded.layer;
  r.policy = policy;
  r.admission = contract.admission;
  r.representation = contract.representation;
  r.request_of_token = recorded.request_of_token;
  r.transformed = recorded.transformed;
  r.values = recorded.values;
  if (policy.bias) r.bias = recorded.bias;
  if (policy.noise == NoiseSource::kLogitNoise) r.noise = recorded.noise;
  if (policy.noise == NoiseSource::kSecondDraw) r.draws = recorded.draws;
  r.position_of_token = recorded.position_of_token;
  // Identities that the record was given; with its own groups of so many tokens
  // they follow from the contract instead. What earlier tokens of a sequence
  // have taken is known for the recorded contract alone.
  const bool sequence = contract.admission.scope == GroupScope::kSequence;
  if (sequence ? policy == recorded.policy &&
                     contract.admission == recorded.admission
               : recorded.admission.group_tokens == 0 &&
                     contract.admission.group_tokens == 0) {
    r.group_of_token = recorded.group_of_token;
    r.occupancy = recorded.occupancy;
  }
  TL_RETURN_IF_ERROR(FillRecord(recorded.table.rows, &r));
  return r;
}

std::optional<std::string> FirstDifference(const LayerRecord& a,
                                           const LayerRecord& b) {
  if (a.table.rows != b.table.rows || a.table.size() != b.table.size()) {
    return absl::StrCat(a.table.size(), " routes of ", a.table.rows,
                        " tokens against ", b.table.size(), " of ",
                        b.table.rows);
  }
  const auto routes = static_cast<size_t>(a.table.size());
  for (size_t i = 0; i < routes; ++i) {
    const std::string key =
        absl::StrCat("token ", a.table.token_id[i], ", slot ",
                     a.table.selected_slot[i], ": ");
    if (a.table.token_id[i] != b.table.token_id[i] ||
        a.table.selected_slot[i] != b.table.selected_slot[i]) {
      return absl::StrCat(key, "against token ", b.table.token_id[i], ", slot ",
                          b.table.selected_slot[i]);
    }
    if (a.selected_expert[i] != b.selected_expert[i] ||
        a.table.expert_id[i] != b.table.expert_id[i]) {
      return absl::StrCat(key, "expert ", a.selected_expert[i].value,
                          " run on ", a.table.expert_id[i].value,
                          " against expert ", b.selected_expert[i].value,
                          " run on ", b.table.expert_id[i].value);
    }
    if (a.table.fate[i] != b.table.fate[i]) {
      return absl::StrCat(key, "fate ", static_cast<int>(a.table.fate[i]),
                          " against ", static_cast<int>(b.table.fate[i]));
    }
    if (std::bit_cast<uint32_t>(a.table.gate[i]) !=
        std::bit_cast<uint32_t>(b.table.gate[i])) {
      return absl::StrCat(key, "gate ", a.table.gate[i], " against ",
                          b.table.gate[i]);
    }
  }
  return std::nullopt;
}

absl::Status ProveEqual(const LayerRecord& recorded) {
  TL_ASSIGN_OR_RETURN(const LayerRecord again,
                      Reroute(recorded, ContractOf(recorded)));
  if (const auto difference = FirstDifference(recorded, again)) {
    return absl::DataLossError(
        absl::StrCat("step ", recorded.step.value, ", layer ",
                     recorded.layer.value, ": the record is not what policy ",
                     recorded.policy.name, " makes: ", *difference));
  }
  return absl::OkStatus();
}

absl::StatusOr<ReplayResult> Replay(const LayerRecord& recorded,
                                    const ReplaySetup& setup) {
  LayerRecord input = recorded;
  if (setup.skew > 0.0 && !recorded.occupancy.empty() &&
      setup.contract.admission.scope == GroupScope::kSequence) {
    return absl::InvalidArgumentError(
        "skew: what the earlier tokens of a group have taken was recorded "
        "under "
        "the scores as they were");
  }
  SkewRows(setup.skew, &input);
  ReplayResult result;
  TL_ASSIGN_OR_RETURN(result.record, Reroute(input, setup.contract));
  AdmissionReport report;
  report.selected_expert = result.record.selected_expert;
  report.selected_gate = result.record.selected_gate;
  // The record holds the outcome; the groups' reserved rows follow from it.
  RouteTable again = result.record.table;
  again.expert_id = result.record.selected_expert;
  again.gate = result.record.selected_gate;
  for (RouteFate& fate : again.fate) {
    if (fate != RouteFate::kNotDrawn) fate = RouteFate::kAccepted;
  }
  TL_RETURN_IF_ERROR(AdmitRoutes(result.record.NamedAdmission(),
                                 result.record.AdmissionOf(), &again, &report));
  result.ledger = TakeLedger(result.record.table, report);
  result.layout = {static_cast<int64_t>(result.record.handoff_routes.size()),
                   result.record.represented_rows, result.record.tail_rows};
  if (setup.place) {
    TL_ASSIGN_OR_RETURN(
        const std::vector<WorkerId> owners,
        setup.place(result.record.table, setup.workers, setup.replicas));
    TL_ASSIGN_OR_RETURN(result.workers,
                        LoadPerWorker(result.record.table, owners, setup.link));
  }
  const TrafficShape shape = ShapeOf(result.record, setup.width);
  result.traffic = ReferenceTraffic(shape);
  result.live = LivePayload(shape);
  const Retention retention = RetainedBytes(shape);
  if (setup.contract.retained == RetainedState::kSave) {
    result.retained_bytes = retention.save_bytes;
  } else if (setup.contract.retained == RetainedState::kRematerialize) {
    result.retained_bytes = retention.rematerialize_bytes;
  }
  return result;
}

absl::string_view Name(SweepCoordinate v) {
  switch (v) {
    case SweepCoordinate::kCapacityFactor:
      return "capacity-factor";
    case SweepCoordinate::kSkew:
      return "skew";
    case SweepCoordinate::kGroupTokens:
      return "group-tokens";
    case SweepCoordinate::kBlockRows:
      return "block-rows";
    case SweepCoordinate::kReplicas:
      return "replicas";
    case SweepCoordinate::kWorkers:
      return "workers";
  }
  return "unknown";
}

absl::StatusOr<SweepCoordinate> ParseSweepCoordinate(absl::string_view name) {
  std::string known;
  for (SweepCoordinate c : kCoordinates) {
    if (name == Name(c)) return c;
    absl::StrAppend(&known, known.empty() ? "" : ", ", Name(c));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", name, "\" is not a coordinate: ", known));
}

absl::StatusOr<Sweep> SweepOne(const LayerRecord& recorded,
                               const ReplaySetup& setup,
                               SweepCoordinate coordinate,
                               const std::vector<double>& values) {
  Sweep sweep;
  sweep.coordinate = coordinate;
  for (SweepCoordinate c : kCoordinates) {
    if (c != coordinate) sweep.frozen.push_back(CoordinateText(c, setup));
  }
  sweep.frozen.push_back(absl::StrCat("policy = ", setup.contract.policy.name));
  sweep.frozen.push_back(absl::StrCat("width = ", setup.width));
  for (double value : values) {
    ReplaySetup point = setup;
    TL_RETURN_IF_ERROR(SetCoordinate(coordinate, value, &point));
    SweepPoint p;
    p.value = value;
    TL_ASSIGN_OR_RETURN(p.result, Replay(recorded, point));
    sweep.points.push_back(std::move(p));
  }
  return sweep;
}

}  // namespace trunkline::routing
