#pragma once

// How accepted routes are laid out as rows for the experts. The relation (which
// token's row goes to which expert with which gate) is the same in every form;
// what differs is padding. Pure.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "routing/route_table.h"

namespace trunkline::routing {

enum class RowForm : uint8_t {
  kPacked = 0,   // no padding: one row a route
  kFixed = 1,    // [experts, capacity]
  kMaxLoad = 2,  // [experts, rows of the most loaded expert]
  kBlocks = 3,   // each expert's rows rounded up to whole blocks
};
absl::string_view Name(RowForm v);

struct RepresentationPolicy {
  RowForm form = RowForm::kPacked;
  int64_t capacity = 0;    // kFixed
  int64_t block_rows = 0;  // kBlocks
};
absl::Status ValidateRepresentation(const RepresentationPolicy& policy);

inline constexpr uint32_t kPaddingRow = UINT32_MAX;

struct RowLayout {
  RepresentationPolicy policy;
  std::vector<uint32_t> expert_begin;  // [experts + 1] in represented rows
  std::vector<uint32_t> expert_rows;   // [experts] of them, how many are routes
  // [represented rows] the route row of the table, or kPaddingRow. An expert's
  // routes come first, in (token, slot) order; its padding follows.
  std::vector<uint32_t> route_of_row;
  // [routes] where the route lies, kPaddingRow for one that was not accepted.
  std::vector<uint32_t> row_of_route;

  int64_t represented_rows() const {
    return static_cast<int64_t>(route_of_row.size());
  }
  int64_t semantic_rows() const;
  int64_t tail_rows() const { return represented_rows() - semantic_rows(); }
};

// INVALID_ARGUMENT when an expert has more accepted routes than a fixed
// capacity holds: admission decides who is dropped, never the layout. Reuses
// the layout's memory.
absl::Status LayOutRows(const RouteTable& table,
                        const RepresentationPolicy& policy, RowLayout* layout);

}  // namespace trunkline::routing
