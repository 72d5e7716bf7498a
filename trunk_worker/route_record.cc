// Values into messages, and what follows from a record's choice; the way back
// is in route_record_reading.cc.

#include "trunk_worker/route_record.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "trunk_worker/route_record_policy.h"

namespace trunkline::trunk {
namespace {

using routing::LayerRecord;
using routing::RouteFate;
using routing::RouteTable;

template <typename Values, typename Field>
void Copy(const Values& values, Field* field) {
  field->Reserve(static_cast<int>(values.size()));
  for (const auto& v : values) field->Add(v);
}

void WriteObjective(const LayerRecord& r, v1::ObjectiveStatistics* w) {
  double selected = 0.0, executed = 0.0;
  for (size_t i = 0; i < r.selected_gate.size(); ++i) {
    selected += static_cast<double>(r.selected_gate[i]);
    if (r.table.fate[i] == RouteFate::kAccepted)
      executed += static_cast<double>(r.table.gate[i]);
  }
  w->set_selected_gate_mass(selected);
  w->set_executed_gate_mass(executed);
  const auto experts = static_cast<size_t>(r.table.experts);
  std::vector<double> mass(experts, 0.0);
  for (size_t i = 0; i < r.values.size(); ++i)
    mass[i % experts] += static_cast<double>(r.values[i]);
  Copy(mass, w->mutable_score_mass());
}

void WriteChoice(const LayerRecord& r, v1::SelectionStatistics* w) {
  const RouteTable& t = r.table;
  Copy(t.token_id, w->mutable_origin_token_id());
  Copy(t.selected_slot, w->mutable_selected_slot());
  for (ExpertId e : r.selected_expert) w->add_selected_expert_id(e.value);
  Copy(r.selected_gate, w->mutable_selected_gate());
  std::string* mask = w->mutable_admission_mask();
  for (RouteFate fate : t.fate) mask->push_back(static_cast<char>(fate));
  if (t.expert_id != r.selected_expert)
    for (ExpertId e : t.expert_id) w->add_executed_expert_id(e.value);
  if (t.gate != r.selected_gate) Copy(t.gate, w->mutable_executed_gate());
}

v1::SelectionStatistics Statistics(const LayerRecord& r) {
  v1::SelectionStatistics w;
  w.set_tokens(static_cast<uint32_t>(r.table.rows));
  Copy(r.group_of_token, w.mutable_group_identity());
  Copy(r.request_of_token, w.mutable_request_of_token());
  for (uint8_t valid : r.valid_token)
    w.mutable_valid_token_mask()->push_back(static_cast<char>(valid));
  Copy(r.values, w.mutable_router_scores());
  WriteChoice(r, &w);
  Copy(r.selected_counts, w.mutable_selected_counts());
  Copy(r.executed_counts, w.mutable_executed_counts());
  Copy(r.dropped_routes, w.mutable_dropped_route_id());
  WriteObjective(r, w.mutable_objective());
  w.mutable_tie_state()->set_rule(
      ChoiceToWire<v1::RouterPolicyRecord::Tie>(r.policy.tie));
  w.mutable_tie_state()->set_tied_tokens(static_cast<uint32_t>(r.tied_rows));
  w.mutable_noise_state()->set_source(
      ChoiceToWire<v1::RouterPolicyRecord::Noise>(r.policy.noise));
  Copy(r.position_of_token, w.mutable_position_of_token());
  for (const routing::GroupOccupancy& o : r.occupancy) {
    v1::GroupOccupancy* group = w.add_occupancy();
    group->set_group(o.group);
    Copy(o.used, group->mutable_used());
  }
  Copy(r.noise, w.mutable_noise_state()->mutable_logit_noise());
  Copy(r.draws, w.mutable_noise_state()->mutable_draws());
  return w;
}

v1::AcceptedRouteHandoff Handoff(const LayerRecord& r) {
  using W = v1::AcceptedRouteHandoff;
  const RouteTable& t = r.table;
  W w;
  w.set_token_order(W::EXPERT_TOKEN_SLOT);
  for (uint32_t route : r.handoff_routes) {
    w.add_accepted_route_id(route);
    w.add_origin_token_id(t.token_id[route]);
    w.add_selected_slot(t.selected_slot[route]);
    w.add_logical_expert_id(t.expert_id[route].value);
    w.add_gate(t.gate[route]);
  }
  Copy(r.expert_local_row, w.mutable_expert_local_row());
  w.set_route_metadata_dtype("token u32, slot u16, expert u32, gate f32");
  Copy(r.expert_counts, w.mutable_expert_counts());
  Copy(r.prefix_offsets, w.mutable_prefix_offsets());
  *w.mutable_representation() = ToProto(r.representation);
  w.set_represented_rows(static_cast<uint32_t>(r.represented_rows));
  w.set_block_rows(static_cast<uint32_t>(r.representation.block_rows));
  w.set_tail_rows(static_cast<uint32_t>(r.tail_rows));
  w.set_backward_state(W::NOT_KEPT);
  w.set_placement_version(
      r.placement_version.valid() ? r.placement_version.value : 0);
  return w;
}

void WritePhysical(const LayerRecord& r, v1::PhysicalPlan* w) {
  w->set_origin(r.physical.front().origin.value);
  for (const routing::PhysicalRoute& p : r.physical) {
    w->add_worker(p.worker.value);
    w->add_attempt(p.attempt);
    w->add_replica(p.replica);
    w->add_send_offset(p.send_offset);
    w->add_receive_offset(p.receive_offset);
    w->add_local_row(p.local_row);
    w->add_placement_version(p.placement_version.value);
    w->add_completion(p.state == routing::Completion::kRetried
                          ? v1::PhysicalPlan::RETRIED
                          : v1::PhysicalPlan::DONE);
  }
}

void WriteTotals(const RouteTotals& totals, v1::RouteCounters* w) {
  w->set_selected(totals.selected);
  w->set_executed(totals.executed);
}

}  // namespace

absl::string_view Name(RecordingEnd end) {
  switch (end) {
    case RecordingEnd::kTimeOver:
      return "the time was over";
    case RecordingEnd::kStopped:
      return "stopped";
    case RecordingEnd::kServerStopped:
      return "the server stopped";
    case RecordingEnd::kConnectionLost:
      return "the connection was lost";
  }
  return "unknown";
}

const RecordedLayer* RecordingHeader::Find(LayerIndex layer) const {
  const auto at =
      std::find_if(layers.begin(), layers.end(),
                   [&](const RecordedLayer& l) { return l.layer == layer; });
  return at == layers.end() ? nullptr : &*at;
}

v1::RouteRecordHeader ToProto(const RecordingHeader& h) {
  v1::RouteRecordHeader w;
  w.set_magic(kRouteRecordMagic);
  w.set_format_version(kRouteRecordVersion);
  w.set_recording_id(h.recording_id);
  w.set_model_name(h.model_name);
  w.set_model_digest(h.model_digest);
  w.set_trunk(h.trunk);
  const absl::string_view dtype = DTypeName(h.row_dtype);
  w.set_row_dtype(dtype.data(), dtype.size());
  w.set_started_unix_ms(h.started_unix_ms);
  for (const RecordedLayer& layer : h.layers) {
    v1::RecordedLayerShape* s = w.add_layers();
    s->set_layer(layer.layer.value);
    s->set_experts(static_cast<uint32_t>(layer.experts));
    s->set_top_k(static_cast<uint32_t>(layer.top_k));
    s->set_width(static_cast<uint32_t>(layer.width));
    *s->mutable_policy() = ToProto(layer.policy);
    *s->mutable_admission() = ToProto(layer.admission);
    *s->mutable_representation() = ToProto(layer.representation);
    Copy(layer.bias, s->mutable_bias());
  }
  return w;
}

v1::RoutedLayer ToProto(const RecordedRoutes& routes) {
  const LayerRecord& r = routes.record;
  v1::RoutedLayer w;
  w.set_step(r.step.value);
  w.set_layer(r.layer.value);
  w.set_completed(routes.completed);
  *w.mutable_statistics() = Statistics(r);
  *w.mutable_handoff() = Handoff(r);
  if (!r.physical.empty()) WritePhysical(r, w.mutable_physical());
  return w;
}

v1::RouteRecordTrailer ToProto(const RecordingTrailer& t) {
  v1::RouteRecordTrailer w;
  w.set_end(ChoiceToWire<v1::RouteRecordTrailer::End>(t.end));
  w.set_seconds(t.seconds);
  for (const RecordedLayerTotals& layer : t.layers) {
    v1::RecordedLayerTotals* l = w.add_layers();
    l->set_layer(layer.layer.value);
    l->set_records(layer.records);
    l->set_selected(layer.routes.selected);
    l->set_executed(layer.routes.executed);
    l->set_records_left_out(layer.records_left_out);
    l->set_selected_left_out(layer.left_out.selected);
    l->set_executed_left_out(layer.left_out.executed);
    if (!layer.has_counters) continue;
    WriteTotals(layer.at_begin, l->mutable_at_begin());
    WriteTotals(layer.at_end, l->mutable_at_end());
  }
  return w;
}

RouteTotals CountRoutes(const RecordedRoutes& routes) {
  RouteTotals totals;
  totals.selected = static_cast<uint64_t>(routes.record.table.size());
  if (routes.completed) totals.executed = routes.record.handoff_routes.size();
  return totals;
}

absl::Status DeriveHandoff(LayerRecord* r) {
  const RouteTable& t = r->table;
  const auto experts = static_cast<size_t>(t.experts);
  r->selected_expert = t.expert_id;
  if (r->selected_gate.empty()) r->selected_gate = t.gate;
  r->selected_counts.assign(experts, 0);
  r->executed_counts.assign(experts, 0);
  for (uint32_t i = 0; i < t.size(); ++i) {
    ++r->selected_counts[t.expert_id[i].value];
    if (t.fate[i] == RouteFate::kAccepted)
      ++r->executed_counts[t.expert_id[i].value];
    if (t.fate[i] == RouteFate::kDropped) r->dropped_routes.push_back(i);
  }
  TL_ASSIGN_OR_RETURN(const std::vector<double> margins,
                      routing::BoundaryMargins(r->policy, r->Input()));
  r->tied_rows = std::count(margins.begin(), margins.end(), 0.0);
  routing::RowLayout layout;
  TL_RETURN_IF_ERROR(routing::LayOutRows(t, r->representation, &layout));
  routing::FillHandoff(layout, r);
  return absl::OkStatus();
}

}  // namespace trunkline::trunk
