// Messages into values, for files that anybody may have written.

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "trunk_worker/route_record.h"
#include "trunk_worker/route_record_policy.h"

namespace trunkline::trunk {
namespace {

using routing::LayerRecord;
using routing::RouteFate;
using routing::RouteTable;

// Larger ones are no models; with them no product below overflows.
constexpr int64_t kExpertsMax = 1 << 20;
constexpr int64_t kTokensMax = 1 << 24;

template <typename... Args>
absl::Status Bad(absl::string_view field, const Args&... why) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", why...));
}

absl::Status CheckCount(absl::string_view field, int64_t count,
                        int64_t expected) {
  if (count == expected) return absl::OkStatus();
  return Bad(field, count, " entries where ", expected, " belong");
}

template <typename Field, typename Value>
void Take(const Field& field, std::vector<Value>* values) {
  values->assign(field.begin(), field.end());
}

// One word of truth and one that repeats it.
template <typename A, typename B>
absl::Status CheckSame(absl::string_view field, size_t at, const A& stated,
                       const B& follows) {
  if (static_cast<int64_t>(stated) == static_cast<int64_t>(follows))
    return absl::OkStatus();
  return Bad(absl::StrCat(field, "[", at, "]"), stated, " where ", follows,
             " follows from the routes");
}

bool SameBits(float a, float b) {
  return __builtin_memcmp(&a, &b, sizeof(a)) == 0;
}

absl::StatusOr<RecordedLayer> LayerShapeFromProto(
    const v1::RecordedLayerShape& w) {
  RecordedLayer l;
  l.layer = LayerIndex(w.layer());
  l.experts = w.experts();
  l.top_k = w.top_k();
  l.width = w.width();
  if (l.experts < 1 || l.experts > kExpertsMax)
    return Bad("experts", l.experts, " is not in [1, ", kExpertsMax, "]");
  if (l.width < 1 || l.width > kTokensMax)
    return Bad("width", l.width, " is not in [1, ", kTokensMax, "]");
  TL_ASSIGN_OR_RETURN(l.policy, FromProto(w.policy()));
  if (l.policy.owner == routing::SelectionOwner::kSoft)
    return Bad("policy.owner", "soft assignment has no routes to record");
  if (l.policy.experts != l.experts)
    return Bad("policy.experts", l.policy.experts, " where the layer has ",
               l.experts);
  if (l.policy.top_k != l.top_k)
    return Bad("policy.top_k", l.policy.top_k, " where the layer has ",
               l.top_k);
  TL_ASSIGN_OR_RETURN(l.admission, FromProto(w.admission(), l.experts));
  TL_ASSIGN_OR_RETURN(l.representation, FromProto(w.representation()));
  TL_RETURN_IF_ERROR(
      CheckCount("bias", w.bias_size(), l.policy.bias ? l.experts : 0));
  for (float b : w.bias())
    if (!std::isfinite(b)) return Bad("bias", b, " is not finite");
  Take(w.bias(), &l.bias);
  return l;
}

absl::Status ReadTokens(const v1::SelectionStatistics& w, int64_t experts,
                        LayerRecord* r) {
  const int64_t tokens = w.tokens();
  if (tokens < 1 || tokens > kTokensMax)
    return Bad("statistics.tokens", tokens, " is not in [1, ", kTokensMax, "]");
  TL_RETURN_IF_ERROR(
      CheckCount("statistics.group_identity", w.group_identity_size(), tokens));
  TL_RETURN_IF_ERROR(CheckCount("statistics.request_of_token",
                                w.request_of_token_size(), tokens));
  TL_RETURN_IF_ERROR(
      CheckCount("statistics.valid_token_mask",
                 static_cast<int64_t>(w.valid_token_mask().size()), tokens));
  TL_RETURN_IF_ERROR(CheckCount("statistics.router_scores",
                                w.router_scores_size(), tokens * experts));
  for (int i = 0; i < w.router_scores_size(); ++i) {
    if (!std::isfinite(w.router_scores(i)))
      return Bad(absl::StrCat("statistics.router_scores[", i, "]"),
                 w.router_scores(i), " is not finite");
  }
  for (char valid : w.valid_token_mask())
    if (valid != 0 && valid != 1)
      return Bad("statistics.valid_token_mask", +valid, " is not 0 or 1");
  if (w.position_of_token_size() != 0)
    TL_RETURN_IF_ERROR(CheckCount("statistics.position_of_token",
                                  w.position_of_token_size(), tokens));
  Take(w.position_of_token(), &r->position_of_token);
  for (int i = 0; i < w.occupancy_size(); ++i) {
    const v1::GroupOccupancy& o = w.occupancy(i);
    TL_RETURN_IF_ERROR(CheckCount(absl::StrCat("statistics.occupancy[", i, "]"),
                                  o.used_size(), experts));
    if (i > 0 && o.group() <= w.occupancy(i - 1).group())
      return Bad(absl::StrCat("statistics.occupancy[", i, "]"), "group ",
                 o.group(), " does not come after the one before");
    r->occupancy.push_back({o.group(), {o.used().begin(), o.used().end()}});
  }
  r->table.rows = tokens;
  r->table.experts = experts;
  Take(w.group_identity(), &r->group_of_token);
  Take(w.request_of_token(), &r->request_of_token);
  Take(w.valid_token_mask(), &r->valid_token);
  Take(w.router_scores(), &r->values);
  return absl::OkStatus();
}

absl::Status CheckRouteArrays(const v1::SelectionStatistics& w) {
  const int64_t routes = w.origin_token_id_size();
  TL_RETURN_IF_ERROR(
      CheckCount("statistics.selected_slot", w.selected_slot_size(), routes));
  TL_RETURN_IF_ERROR(CheckCount("statistics.selected_expert_id",
                                w.selected_expert_id_size(), routes));
  TL_RETURN_IF_ERROR(
      CheckCount("statistics.selected_gate", w.selected_gate_size(), routes));
  TL_RETURN_IF_ERROR(CheckCount("statistics.admission_mask",
                                static_cast<int64_t>(w.admission_mask().size()),
                                routes));
  if (w.executed_expert_id_size() != 0)
    TL_RETURN_IF_ERROR(CheckCount("statistics.executed_expert_id",
                                  w.executed_expert_id_size(), routes));
  if (w.executed_gate_size() != 0)
    TL_RETURN_IF_ERROR(
        CheckCount("statistics.executed_gate", w.executed_gate_size(), routes));
  return absl::OkStatus();
}

// Routes in (token, slot) order, each of a token and an expert that there are.
absl::Status ReadRoutes(const v1::SelectionStatistics& w, LayerRecord* r) {
  TL_RETURN_IF_ERROR(CheckRouteArrays(w));
  const int64_t tokens = r->table.rows, experts = r->table.experts;
  for (int i = 0; i < w.origin_token_id_size(); ++i) {
    const auto at = [i](const char* field) {
      return absl::StrCat("statistics.", field, "[", i, "]");
    };
    const uint32_t token = w.origin_token_id(i), slot = w.selected_slot(i);
    const ExpertId selected(w.selected_expert_id(i));
    const ExpertId executed(w.executed_expert_id_size() == 0
                                ? selected.value
                                : w.executed_expert_id(i));
    const float gate =
        w.executed_gate_size() == 0 ? w.selected_gate(i) : w.executed_gate(i);
    const char fate = w.admission_mask()[static_cast<size_t>(i)];
    if (token >= tokens)
      return Bad(at("origin_token_id"), token, " of ", tokens);
    if (slot > std::numeric_limits<uint16_t>::max())
      return Bad(at("selected_slot"), slot, " is no slot");
    if (i > 0 &&
        (token < w.origin_token_id(i - 1) ||
         (token == w.origin_token_id(i - 1) && slot <= w.selected_slot(i - 1))))
      return Bad(at("selected_slot"), "token ", token, ", slot ", slot,
                 " does not come after the route before");
    if (selected.value >= experts)
      return Bad(at("selected_expert_id"), selected.value, " of ", experts);
    if (executed.value >= experts)
      return Bad(at("executed_expert_id"), executed.value, " of ", experts);
    if (!std::isfinite(w.selected_gate(i)) || !std::isfinite(gate))
      return Bad(at("selected_gate"), w.selected_gate(i), " is not finite");
    if (fate < 0 || fate > static_cast<char>(RouteFate::kNotDrawn))
      return Bad(at("admission_mask"), +fate, " is not 0, 1 or 2");
    r->table.Add(token, static_cast<uint16_t>(slot), executed, gate,
                 static_cast<RouteFate>(fate));
    r->selected_expert.push_back(selected);
    r->selected_gate.push_back(w.selected_gate(i));
  }
  return absl::OkStatus();
}

absl::Status ReadCounts(const v1::SelectionStatistics& w, LayerRecord* r) {
  const auto experts = static_cast<size_t>(r->table.experts);
  TL_RETURN_IF_ERROR(CheckCount("statistics.selected_counts",
                                w.selected_counts_size(), r->table.experts));
  TL_RETURN_IF_ERROR(CheckCount("statistics.executed_counts",
                                w.executed_counts_size(), r->table.experts));
  std::vector<uint64_t> selected(experts, 0), executed(experts, 0);
  std::vector<uint32_t> dropped;
  for (uint32_t i = 0; i < r->table.size(); ++i) {
    ++selected[r->selected_expert[i].value];
    if (r->table.fate[i] == RouteFate::kAccepted)
      ++executed[r->table.expert_id[i].value];
    if (r->table.fate[i] == RouteFate::kDropped) dropped.push_back(i);
  }
  for (size_t e = 0; e < experts; ++e) {
    const int i = static_cast<int>(e);
    TL_RETURN_IF_ERROR(CheckSame("statistics.selected_counts", e,
                                 w.selected_counts(i), selected[e]));
    TL_RETURN_IF_ERROR(CheckSame("statistics.executed_counts", e,
                                 w.executed_counts(i), executed[e]));
  }
  TL_RETURN_IF_ERROR(CheckCount("statistics.dropped_route_id",
                                w.dropped_route_id_size(),
                                static_cast<int64_t>(dropped.size())));
  for (size_t i = 0; i < dropped.size(); ++i)
    TL_RETURN_IF_ERROR(CheckSame("statistics.dropped_route_id", i,
                                 w.dropped_route_id(static_cast<int>(i)),
                                 dropped[i]));
  Take(selected, &r->selected_counts);
  Take(executed, &r->executed_counts);
  r->dropped_routes = std::move(dropped);
  return absl::OkStatus();
}

absl::Status ReadStates(const v1::SelectionStatistics& w, LayerRecord* r) {
  if (w.objective().score_mass_size() != r->table.experts)
    return CheckCount("statistics.objective.score_mass",
                      w.objective().score_mass_size(), r->table.experts);
  if (w.tie_state().rule() !=
      ChoiceToWire<v1::RouterPolicyRecord::Tie>(r->policy.tie))
    return Bad("statistics.tie_state.rule", w.tie_state().rule(),
               " is not the policy's");
  if (w.tie_state().tied_tokens() > r->table.rows)
    return Bad("statistics.tie_state.tied_tokens", w.tie_state().tied_tokens(),
               " of ", r->table.rows, " tokens");
  r->tied_rows = w.tie_state().tied_tokens();
  const v1::NoiseState& noise = w.noise_state();
  if (noise.source() !=
      ChoiceToWire<v1::RouterPolicyRecord::Noise>(r->policy.noise))
    return Bad("statistics.noise_state.source", noise.source(),
               " is not the policy's");
  const bool logits = r->policy.noise == routing::NoiseSource::kLogitNoise;
  const bool draws = r->policy.noise == routing::NoiseSource::kSecondDraw;
  TL_RETURN_IF_ERROR(CheckCount("statistics.noise_state.logit_noise",
                                noise.logit_noise_size(),
                                logits ? r->table.rows * r->table.experts : 0));
  TL_RETURN_IF_ERROR(CheckCount("statistics.noise_state.draws",
                                noise.draws_size(), draws ? r->table.rows : 0));
  Take(noise.logit_noise(), &r->noise);
  Take(noise.draws(), &r->draws);
  return absl::OkStatus();
}

absl::Status ReadHandoffRoutes(const v1::AcceptedRouteHandoff& w,
                               LayerRecord* r) {
  const int64_t accepted = w.accepted_route_id_size();
  const std::pair<const char*, int> arrays[] = {
      {"handoff.origin_token_id", w.origin_token_id_size()},
      {"handoff.selected_slot", w.selected_slot_size()},
      {"handoff.logical_expert_id", w.logical_expert_id_size()},
      {"handoff.gate", w.gate_size()},
      {"handoff.expert_local_row", w.expert_local_row_size()}};
  for (const auto& [field, size] : arrays)
    TL_RETURN_IF_ERROR(CheckCount(field, size, accepted));
  const RouteTable& t = r->table;
  for (int i = 0; i < w.accepted_route_id_size(); ++i) {
    const uint32_t route = w.accepted_route_id(i);
    const auto at = static_cast<size_t>(i);
    if (route >= t.size())
      return Bad(absl::StrCat("handoff.accepted_route_id[", i, "]"), route,
                 " of ", t.size(), " routes");
    TL_RETURN_IF_ERROR(CheckSame("handoff.origin_token_id", at,
                                 w.origin_token_id(i), t.token_id[route]));
    TL_RETURN_IF_ERROR(CheckSame("handoff.selected_slot", at,
                                 w.selected_slot(i), t.selected_slot[route]));
    TL_RETURN_IF_ERROR(CheckSame("handoff.logical_expert_id", at,
                                 w.logical_expert_id(i),
                                 t.expert_id[route].value));
    if (!SameBits(w.gate(i), t.gate[route]))
      return Bad(absl::StrCat("handoff.gate[", i, "]"), w.gate(i), " where ",
                 t.gate[route], " was chosen");
  }
  Take(w.accepted_route_id(), &r->handoff_routes);
  Take(w.expert_local_row(), &r->expert_local_row);
  return absl::OkStatus();
}

absl::Status ReadHandoff(const v1::AcceptedRouteHandoff& w, LayerRecord* r) {
  using W = v1::AcceptedRouteHandoff;
  if (w.token_order() != W::EXPERT_TOKEN_SLOT)
    return Bad("handoff.token_order", w.token_order(),
               " is not a known choice");
  if (w.backward_state() != W::NOT_KEPT)
    return Bad("handoff.backward_state", w.backward_state(),
               " is not a known choice");
  TL_RETURN_IF_ERROR(ReadHandoffRoutes(w, r));
  TL_RETURN_IF_ERROR(CheckCount("handoff.expert_counts", w.expert_counts_size(),
                                r->table.experts));
  TL_RETURN_IF_ERROR(CheckCount("handoff.prefix_offsets",
                                w.prefix_offsets_size(), r->table.experts + 1));
  int64_t accepted = 0;
  for (int e = 0; e < w.expert_counts_size(); ++e) {
    const auto at = static_cast<size_t>(e);
    TL_RETURN_IF_ERROR(
        CheckSame("handoff.prefix_offsets", at, w.prefix_offsets(e), accepted));
    TL_RETURN_IF_ERROR(CheckSame("handoff.expert_counts", at,
                                 w.expert_counts(e), r->executed_counts[at]));
    accepted += w.expert_counts(e);
  }
  TL_RETURN_IF_ERROR(CheckSame(
      "handoff.prefix_offsets", static_cast<size_t>(r->table.experts),
      w.prefix_offsets(static_cast<int>(r->table.experts)), accepted));
  TL_RETURN_IF_ERROR(CheckCount("handoff.accepted_route_id",
                                w.accepted_route_id_size(), accepted));
  TL_ASSIGN_OR_RETURN(const routing::RepresentationPolicy representation,
                      FromProto(w.representation()));
  if (representation.form != r->representation.form ||
      representation.capacity != r->representation.capacity ||
      representation.block_rows != r->representation.block_rows ||
      w.block_rows() != representation.block_rows)
    return Bad("handoff.representation", "is not the header's");
  if (static_cast<int64_t>(w.represented_rows()) !=
      accepted + static_cast<int64_t>(w.tail_rows()))
    return Bad("handoff.represented_rows", w.represented_rows(), " where ",
               accepted, " routes and ", w.tail_rows(), " tail rows are");
  Take(w.expert_counts(), &r->expert_counts);
  Take(w.prefix_offsets(), &r->prefix_offsets);
  r->represented_rows = w.represented_rows();
  r->tail_rows = w.tail_rows();
  r->placement_version = PlacementVersion(w.placement_version());
  return absl::OkStatus();
}

absl::Status ReadPhysical(const v1::PhysicalPlan& w, LayerRecord* r) {
  const auto accepted = static_cast<int64_t>(r->handoff_routes.size());
  const std::pair<const char*, int> arrays[] = {
      {"physical.worker", w.worker_size()},
      {"physical.attempt", w.attempt_size()},
      {"physical.replica", w.replica_size()},
      {"physical.send_offset", w.send_offset_size()},
      {"physical.receive_offset", w.receive_offset_size()},
      {"physical.local_row", w.local_row_size()},
      {"physical.completion", w.completion_size()},
      {"physical.placement_version", w.placement_version_size()}};
  for (const auto& [field, size] : arrays)
    TL_RETURN_IF_ERROR(CheckCount(field, size, accepted));
  if (r->placement_version.value == 0)
    return Bad("handoff.placement_version",
               "routes ran on workers under no placement version");
  for (int i = 0; i < w.worker_size(); ++i) {
    routing::PhysicalRoute p;
    p.origin = WorkerId(w.origin());
    p.worker = WorkerId(w.worker(i));
    if (!p.worker.valid())
      return Bad(absl::StrCat("physical.worker[", i, "]"), "names no worker");
    if (w.attempt(i) > std::numeric_limits<uint16_t>::max())
      return Bad(absl::StrCat("physical.attempt[", i, "]"), w.attempt(i),
                 " is no attempt");
    p.attempt = static_cast<uint16_t>(w.attempt(i));
    p.replica = w.replica(i);
    p.send_offset = w.send_offset(i);
    p.receive_offset = w.receive_offset(i);
    p.local_row = w.local_row(i);
    p.placement_version = PlacementVersion(w.placement_version(i));
    if (p.placement_version.value == 0 ||
        p.placement_version > r->placement_version)
      return Bad(absl::StrCat("physical.placement_version[", i, "]"),
                 p.placement_version.value, " where the newest is ",
                 r->placement_version.value);
    if (w.completion(i) != v1::PhysicalPlan::DONE &&
        w.completion(i) != v1::PhysicalPlan::RETRIED)
      return Bad(absl::StrCat("physical.completion[", i, "]"), w.completion(i),
                 " is not a known choice");
    p.state = w.completion(i) == v1::PhysicalPlan::RETRIED
                  ? routing::Completion::kRetried
                  : routing::Completion::kDone;
    r->physical.push_back(p);
  }
  return absl::OkStatus();
}

RouteTotals FromProto(const v1::RouteCounters& w) {
  return {w.selected(), w.executed()};
}

}  // namespace

absl::StatusOr<RecordingHeader> HeaderFromProto(
    const v1::RouteRecordHeader& w) {
  if (w.magic() != kRouteRecordMagic)
    return Bad("magic", "\"", w.magic().substr(0, 32), "\" where \"",
               kRouteRecordMagic, "\" belongs: this is no route record");
  if (w.format_version() != kRouteRecordVersion)
    return absl::UnimplementedError(absl::StrCat(
        "format_version: ", w.format_version(),
        " is not one that this program reads: ", kRouteRecordVersion));
  RecordingHeader h;
  h.recording_id = w.recording_id();
  h.model_name = w.model_name();
  h.model_digest = w.model_digest();
  h.trunk = w.trunk();
  h.started_unix_ms = w.started_unix_ms();
  const auto dtype = ParseDType(w.row_dtype());
  if (!dtype.ok()) return Bad("row_dtype", dtype.status().message());
  h.row_dtype = *dtype;
  for (int i = 0; i < w.layers_size(); ++i) {
    absl::StatusOr<RecordedLayer> layer = LayerShapeFromProto(w.layers(i));
    if (!layer.ok())
      return Annotate(layer.status(), absl::StrCat("layers[", i, "]"));
    if (i > 0 && layer->layer <= h.layers.back().layer)
      return Bad(absl::StrCat("layers[", i, "].layer"), layer->layer.value,
                 " does not come after the layer before");
    h.layers.push_back(*std::move(layer));
  }
  if (h.layers.empty()) return Bad("layers", "none is recorded");
  return h;
}

absl::StatusOr<RecordedRoutes> RoutesFromProto(const v1::RoutedLayer& w,
                                               const RecordingHeader& header) {
  const RecordedLayer* shape = header.Find(LayerIndex(w.layer()));
  if (shape == nullptr)
    return Bad("layer", w.layer(), " is not one of the header's");
  RecordedRoutes routes;
  routes.completed = w.completed();
  LayerRecord& r = routes.record;
  r.step = StepId(w.step());
  r.layer = shape->layer;
  r.policy = shape->policy;
  r.admission = shape->admission;
  r.representation = shape->representation;
  r.bias = shape->bias;
  r.table.top_k = shape->top_k;
  TL_RETURN_IF_ERROR(ReadTokens(w.statistics(), shape->experts, &r));
  TL_RETURN_IF_ERROR(ReadRoutes(w.statistics(), &r));
  TL_RETURN_IF_ERROR(ReadCounts(w.statistics(), &r));
  TL_RETURN_IF_ERROR(ReadStates(w.statistics(), &r));
  TL_RETURN_IF_ERROR(ReadHandoff(w.handoff(), &r));
  if (!w.has_physical()) return routes;
  if (!w.completed())
    return Bad("physical", "a layer that did not complete has none");
  TL_RETURN_IF_ERROR(ReadPhysical(w.physical(), &r));
  return routes;
}

absl::StatusOr<RecordingTrailer> TrailerFromProto(
    const v1::RouteRecordTrailer& w, const RecordingHeader& header) {
  RecordingTrailer t;
  TL_ASSIGN_OR_RETURN(
      t.end, ChoiceFromWire(w.end(), RecordingEnd::kConnectionLost, "end"));
  if (!std::isfinite(w.seconds()) || w.seconds() < 0)
    return Bad("seconds", w.seconds(), " is no length of time");
  t.seconds = w.seconds();
  TL_RETURN_IF_ERROR(CheckCount("layers", w.layers_size(),
                                static_cast<int64_t>(header.layers.size())));
  for (int i = 0; i < w.layers_size(); ++i) {
    const v1::RecordedLayerTotals& l = w.layers(i);
    RecordedLayerTotals totals;
    totals.layer = LayerIndex(l.layer());
    if (totals.layer != header.layers[static_cast<size_t>(i)].layer)
      return Bad(absl::StrCat("layers[", i, "].layer"), l.layer(),
                 " is not the header's");
    totals.records = l.records();
    totals.routes = {l.selected(), l.executed()};
    totals.records_left_out = l.records_left_out();
    totals.left_out = {l.selected_left_out(), l.executed_left_out()};
    totals.has_counters = l.has_at_begin() && l.has_at_end();
    totals.at_begin = FromProto(l.at_begin());
    totals.at_end = FromProto(l.at_end());
    t.layers.push_back(totals);
  }
  return t;
}

}  // namespace trunkline::trunk
