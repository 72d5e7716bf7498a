#include "routing/layer_record.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace trunkline::routing {
namespace {

// Numbers groups of sequences in the order in which they come. Tokens without
// positions are one sequence from its start.
absl::Status NameSequenceGroups(int64_t rows, LayerRecord* r) {
  if (r->position_of_token.empty()) {
    const auto& of = r->request_of_token;
    if (std::adjacent_find(of.begin(), of.end(), std::not_equal_to<>()) !=
        of.end()) {
      return absl::InvalidArgumentError(
          "admission scope sequence: the tokens' positions in their sequences "
          "are not known");
    }
    for (uint32_t t = 0; t < rows; ++t) r->position_of_token.push_back(t);
  }
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> names;
  for (size_t t = 0; t < static_cast<size_t>(rows); ++t) {
    const auto size = static_cast<uint32_t>(r->admission.group_tokens);
    const uint32_t position = r->position_of_token[t];
    const auto [name, fresh] =
        names.emplace(std::pair(r->request_of_token[t], position / size),
                      static_cast<uint32_t>(names.size()));
    if (fresh && position % size != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "admission scope sequence: token ", t, " is position ", position,
          " of its sequence, and what the earlier tokens of its group of ",
          size, " would have taken is not in the record"));
    }
    r->group_of_token.push_back(name->second);
  }
  return absl::OkStatus();
}

// Identities that make the policy's groups explicit.
absl::Status NameGroups(int64_t rows, LayerRecord* r) {
  if (!r->group_of_token.empty()) return absl::OkStatus();
  if (r->admission.scope == GroupScope::kSequence) {
    return NameSequenceGroups(rows, r);
  }
  for (int64_t t = 0; t < rows; ++t) {
    r->group_of_token.push_back(
        r->admission.group_tokens == 0
            ? 0
            : static_cast<uint32_t>(t / r->admission.group_tokens));
  }
  return absl::OkStatus();
}

}  // namespace

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

absl::Status FillRecord(int64_t rows, LayerRecord* r) {
  r->table.rows = rows;
  RouterInput in = r->Input();
  TL_RETURN_IF_ERROR(RouteByRecord(r->policy, in, &r->table));
  if (r->request_of_token.empty()) {
    r->request_of_token.assign(static_cast<size_t>(rows), 0);
  }
  r->valid_token.assign(static_cast<size_t>(rows), 1);
  AdmissionReport report;
  TL_RETURN_IF_ERROR(ValidateAdmission(r->admission, r->policy.experts));
  TL_RETURN_IF_ERROR(NameGroups(rows, r));
  TL_RETURN_IF_ERROR(
      AdmitRoutes(r->NamedAdmission(), r->AdmissionOf(), &r->table, &report));
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
