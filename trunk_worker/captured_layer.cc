#include "trunk_worker/captured_layer.h"

#include <algorithm>
#include <utility>

#include "common/status_macros.h"
#include "trunk_worker/step_plan.h"

namespace trunkline::trunk {
void StepRows::Take(const StepPlan& plan, PlacementVersion placement_version) {
  version = placement_version;
  request_of_row.clear();
  position_of_row.clear();
  for (const StepRun& run : plan.runs) {
    const auto count = static_cast<uint32_t>(run.rows.tokens.size());
    request_of_row.insert(request_of_row.end(), count,
                          static_cast<uint32_t>(run.request.value));
    if (run.rows.state == nullptr) continue;
    const auto first = static_cast<uint32_t>(run.rows.state->length());
    for (uint32_t i = 0; i < count; ++i) position_of_row.push_back(first + i);
  }
  // Known for all rows or not at all.
  if (position_of_row.size() != request_of_row.size()) position_of_row.clear();
}

int64_t CapturedLayer::bytes() const {
  const size_t per_route = sizeof(uint32_t) + sizeof(uint16_t) +
                           sizeof(ExpertId) + sizeof(float) + 1;
  size_t taken = 0;
  for (const routing::GroupOccupancy& o : groups.occupancy)
    taken += o.used.size() * sizeof(uint32_t);
  return static_cast<int64_t>(
      sizeof(*this) + taken + selected_gates.size() * sizeof(float) +
      (groups.group_of_token.size() + position_of_row.size()) *
          sizeof(uint32_t) +
      routes.token_id.size() * per_route + scores.size() * sizeof(float) +
      executed.routes.size() * sizeof(dispatch::RouteExecution) +
      request_of_row.size() * sizeof(uint32_t));
}

CapturedLayer CaptureLayer(const ObservedLayer& seen, const StepRows& rows) {
  CapturedLayer captured;
  captured.step = seen.step;
  captured.layer = seen.layer;
  captured.version = rows.version;
  captured.routes = *seen.routes;
  captured.scores.assign(seen.scores.begin(), seen.scores.end());
  if (seen.completed && seen.executed != nullptr) {
    captured.executed.origin = seen.executed->origin;
    captured.executed.routes = seen.executed->routes;
  }
  captured.request_of_row = rows.request_of_row;
  captured.position_of_row = rows.position_of_row;
  captured.selected_gates.assign(seen.selected_gates.begin(),
                                 seen.selected_gates.end());
  if (seen.groups != nullptr) captured.groups = *seen.groups;
  captured.completed = seen.completed;
  return captured;
}

absl::StatusOr<RecordedRoutes> RecordOf(CapturedLayer captured,
                                        const RecordedLayer& layer) {
  RecordedRoutes routes;
  routes.completed = captured.completed;
  routing::LayerRecord& r = routes.record;
  r.step = captured.step;
  r.layer = captured.layer;
  r.policy = layer.policy;
  r.admission = layer.admission;
  r.representation = layer.representation;
  r.bias = layer.bias;
  r.table = std::move(captured.routes);
  const auto rows = static_cast<size_t>(r.table.rows);
  r.group_of_token = std::move(captured.groups.group_of_token);
  if (r.group_of_token.empty()) r.group_of_token.assign(rows, 0);
  r.occupancy = std::move(captured.groups.occupancy);
  r.position_of_token = std::move(captured.position_of_row);
  r.selected_gate = std::move(captured.selected_gates);
  r.valid_token.assign(rows, 1);
  r.request_of_token = std::move(captured.request_of_row);
  r.values = std::move(captured.scores);
  r.placement_version = captured.version;
  TL_RETURN_IF_ERROR(DeriveHandoff(&r));
  if (captured.executed.routes.empty() || !captured.completed) return routes;
  for (uint32_t route : r.handoff_routes) {
    r.physical.push_back(dispatch::PhysicalOf(captured.executed.origin,
                                              captured.executed.routes[route]));
    r.placement_version =
        std::max(r.placement_version, r.physical.back().placement_version);
  }
  return routes;
}

}  // namespace trunkline::trunk
