#include "routing/representation.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"

namespace trunkline::routing {
namespace {

uint64_t RowsOf(const RepresentationPolicy& p, uint64_t routes,
                uint64_t max_load) {
  switch (p.form) {
    case RowForm::kPacked:
      return routes;
    case RowForm::kFixed:
      return static_cast<uint64_t>(p.capacity);
    case RowForm::kMaxLoad:
      return max_load;
    case RowForm::kBlocks: {
      const auto block = static_cast<uint64_t>(p.block_rows);
      return (routes + block - 1) / block * block;
    }
  }
  return routes;
}

}  // namespace

absl::string_view Name(RowForm v) {
  switch (v) {
    case RowForm::kPacked:
      return "packed";
    case RowForm::kFixed:
      return "fixed";
    case RowForm::kMaxLoad:
      return "max load";
    case RowForm::kBlocks:
      return "blocks";
  }
  return "unknown";
}

int64_t RowLayout::semantic_rows() const {
  return std::accumulate(expert_rows.begin(), expert_rows.end(), int64_t{0});
}

absl::Status ValidateRepresentation(const RepresentationPolicy& p) {
  if (Name(p.form) == "unknown") {
    return absl::InvalidArgumentError("representation: form is not known");
  }
  if ((p.form == RowForm::kFixed) != (p.capacity > 0) || p.capacity < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("representation: capacity = ", p.capacity,
                     " with the form ", Name(p.form)));
  }
  if ((p.form == RowForm::kBlocks) != (p.block_rows > 0) || p.block_rows < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("representation: block_rows = ", p.block_rows,
                     " with the form ", Name(p.form)));
  }
  return absl::OkStatus();
}

absl::Status LayOutRows(const RouteTable& table,
                        const RepresentationPolicy& policy, RowLayout* layout) {
  absl::Status status = ValidateRepresentation(policy);
  if (!status.ok()) return status;
  const auto experts = static_cast<size_t>(table.experts);
  const auto routes = static_cast<uint32_t>(table.size());
  layout->policy = policy;
  layout->expert_rows.assign(experts, 0);
  layout->expert_begin.assign(experts + 1, 0);
  layout->route_of_row.clear();
  layout->row_of_route.assign(routes, kPaddingRow);
  for (uint32_t r = 0; r < routes; ++r) {
    if (table.fate[r] != RouteFate::kAccepted) continue;
    const uint32_t expert = table.expert_id[r].value;
    if (expert >= experts) {
      return absl::InvalidArgumentError(absl::StrCat("representation: route ",
                                                     r, " names expert ",
                                                     expert, " of ", experts));
    }
    ++layout->expert_rows[expert];
  }
  const uint32_t max_load = experts == 0
                                ? 0
                                : *std::max_element(layout->expert_rows.begin(),
                                                    layout->expert_rows.end());
  uint64_t rows = 0;
  for (size_t e = 0; e < experts; ++e) {
    if (policy.form == RowForm::kFixed &&
        layout->expert_rows[e] > policy.capacity) {
      return absl::InvalidArgumentError(absl::StrCat(
          "representation: expert ", e, " has ", layout->expert_rows[e],
          " accepted routes, its capacity is ", policy.capacity));
    }
    layout->expert_begin[e] = static_cast<uint32_t>(rows);
    rows += RowsOf(policy, layout->expert_rows[e], max_load);
    if (rows > std::numeric_limits<int32_t>::max()) {
      return absl::InvalidArgumentError(
          absl::StrCat("representation: more than ",
                       std::numeric_limits<int32_t>::max(), " rows"));
    }
  }
  layout->expert_begin[experts] = static_cast<uint32_t>(rows);
  layout->route_of_row.assign(rows, kPaddingRow);
  // expert_rows counts up again while the routes, which the table has in
  // (token, slot) order, take their places.
  std::fill(layout->expert_rows.begin(), layout->expert_rows.end(), 0u);
  for (uint32_t r = 0; r < routes; ++r) {
    if (table.fate[r] != RouteFate::kAccepted) continue;
    const uint32_t expert = table.expert_id[r].value;
    const uint32_t row =
        layout->expert_begin[expert] + layout->expert_rows[expert]++;
    layout->route_of_row[row] = r;
    layout->row_of_route[r] = row;
  }
  return absl::OkStatus();
}

}  // namespace trunkline::routing
