#include "routing/layer_record.h"

#include "common/status_macros.h"

namespace trunkline::routing {
namespace {

// Identities that make the policy's groups explicit.
void NameGroups(int64_t rows, LayerRecord* r) {
  if (!r->group_of_token.empty()) return;
  for (int64_t t = 0; t < rows; ++t) {
    r->group_of_token.push_back(
        r->admission.group_tokens == 0
            ? 0
            : static_cast<uint32_t>(t / r->admission.group_tokens));
  }
}

void FillHandoff(const RowLayout& layout, LayerRecord* r) {
  r->handoff_routes.clear();
  r->expert_local_row.clear();
  r->expert_counts = layout.expert_rows;
  r->prefix_offsets.assign(1, 0);
  const auto experts = static_cast<size_t>(r->table.experts);
  for (size_t e = 0; e < experts; ++e) {
    for (uint32_t i = 0; i < layout.expert_rows[e]; ++i) {
      r->handoff_routes.push_back(
          layout.route_of_row[layout.expert_begin[e] + i]);
      r->expert_local_row.push_back(i);
    }
    r->prefix_offsets.push_back(
        static_cast<uint32_t>(r->handoff_routes.size()));
  }
  r->represented_rows = layout.represented_rows();
  r->tail_rows = layout.tail_rows();
}

}  // namespace

absl::Status FillRecord(int64_t rows, LayerRecord* r) {
  r->table.rows = rows;
  RouterInput in = r->Input();
  TL_RETURN_IF_ERROR(RouteByRecord(r->policy, in, &r->table));
  NameGroups(rows, r);
  if (r->request_of_token.empty()) {
    r->request_of_token.assign(static_cast<size_t>(rows), 0);
  }
  r->valid_token.assign(static_cast<size_t>(rows), 1);
  AdmissionPolicy by_identity = r->admission;
  by_identity.group_tokens = 0;
  AdmissionInput admission;
  admission.scores = r->values;
  admission.group_of_token = r->group_of_token;
  AdmissionReport report;
  TL_RETURN_IF_ERROR(ValidateAdmission(r->admission, r->policy.experts));
  TL_RETURN_IF_ERROR(AdmitRoutes(by_identity, admission, &r->table, &report));
  r->selected_expert = report.selected_expert;
  r->selected_gate = report.selected_gate;
  r->selected_counts.assign(static_cast<size_t>(r->table.experts), 0);
  r->executed_counts.assign(static_cast<size_t>(r->table.experts), 0);
  r->dropped_routes.clear();
  for (uint32_t i = 0; i < r->table.size(); ++i) {
    ++r->selected_counts[r->selected_expert[i].value];
    if (r->table.fate[i] == RouteFate::kAccepted) {
      ++r->executed_counts[r->table.expert_id[i].value];
    } else if (r->table.fate[i] == RouteFate::kDropped) {
      r->dropped_routes.push_back(i);
    }
  }
  r->tied_rows = 0;
  if (r->policy.owner == SelectionOwner::kToken) {
    in = r->Input();
    TL_ASSIGN_OR_RETURN(const std::vector<double> margins,
                        BoundaryMargins(r->policy, in));
    for (double m : margins) r->tied_rows += m == 0.0 ? 1 : 0;
  }
  RowLayout layout;
  TL_RETURN_IF_ERROR(LayOutRows(r->table, r->representation, &layout));
  FillHandoff(layout, r);
  return absl::OkStatus();
}

}  // namespace trunkline::routing
