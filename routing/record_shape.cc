// What every other check relies on: lengths and ranges of a record.

#include "absl/strings/str_cat.h"
#include "routing/layer_checks.h"

namespace trunkline::routing {
namespace {

using Broken = std::optional<std::string>;

template <typename... Args>
Broken Because(const Args&... why) {
  return absl::StrCat(why...);
}

Broken TableShape(const LayerRecord& r) {
  const RouteTable& t = r.table;
  const size_t routes = t.token_id.size();
  const auto rows = static_cast<size_t>(t.rows);
  const auto experts = static_cast<size_t>(t.experts);
  if (t.rows < 0 || t.experts < 1 || t.experts != r.policy.experts) {
    return Because(t.rows, " rows, ", t.experts, " experts, the policy has ",
                   r.policy.experts);
  }
  if (t.selected_slot.size() != routes || t.expert_id.size() != routes ||
      t.gate.size() != routes || t.fate.size() != routes ||
      r.selected_expert.size() != routes || r.selected_gate.size() != routes) {
    return Because("the arrays of ", routes, " routes differ in length");
  }
  if (r.values.size() != rows * experts || r.valid_token.size() != rows ||
      r.request_of_token.size() != rows) {
    return Because(r.values.size(), " scores for ", rows, " tokens and ",
                   experts, " experts, or a token without its marks");
  }
  const bool sequence = r.admission.scope == GroupScope::kSequence;
  if (sequence
          ? r.position_of_token.size() != rows || r.admission.group_tokens < 1
          : !r.position_of_token.empty() &&
                r.position_of_token.size() != rows) {
    return Because(r.position_of_token.size(), " positions for ", rows,
                   " tokens");
  }
  for (const GroupOccupancy& o : r.occupancy) {
    if (o.used.size() != experts) {
      return Because("group ", o.group, " has ", o.used.size(), " counts for ",
                     experts, " experts");
    }
  }
  if (r.selected_counts.size() != experts ||
      r.executed_counts.size() != experts ||
      r.expert_counts.size() != experts ||
      r.prefix_offsets.size() != experts + 1) {
    return Because("a count for each of ", experts, " experts is missing");
  }
  for (size_t i = 0; i < routes; ++i) {
    if (t.token_id[i] >= rows || t.expert_id[i].value >= experts ||
        r.selected_expert[i].value >= experts) {
      return Because("route ", i, " names token ", t.token_id[i],
                     " and expert ", t.expert_id[i].value, " of ", rows,
                     " tokens and ", experts, " experts");
    }
    if (r.valid_token[t.token_id[i]] == 0) {
      return Because("route ", i, " is of a token that is not valid");
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> BrokenShape(const LayerRecord& r,
                                       const ExecutionEvidence* e) {
  if (Broken why = TableShape(r)) return why;
  const size_t routes = r.table.token_id.size();
  const size_t handed = r.handoff_routes.size();
  if (r.expert_local_row.size() != handed ||
      (!r.physical.empty() && r.physical.size() != handed)) {
    return Because("the arrays of ", handed,
                   " handed-over routes differ in length");
  }
  for (uint32_t i : r.handoff_routes) {
    if (i >= routes) return Because("route row ", i, " of ", routes);
  }
  if (e == nullptr) return std::nullopt;
  const auto width = static_cast<size_t>(e->width);
  const auto rows = static_cast<size_t>(r.table.rows);
  const auto represented = static_cast<size_t>(r.represented_rows);
  if (e->width < 1 || r.represented_rows < 0 ||
      e->hidden.size() != rows * width || e->combined.size() != rows * width ||
      e->input.size() != represented * width ||
      e->output.size() != represented * width ||
      e->row_gate.size() != represented) {
    return Because("the rows given do not fit ", rows, " tokens, ",
                   r.represented_rows, " represented rows and width ",
                   e->width);
  }
  return std::nullopt;
}

}  // namespace trunkline::routing
