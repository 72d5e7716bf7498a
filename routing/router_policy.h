#pragma once

// From router scores to selected routes. Pure. Policy and arithmetic of
// NemotronH:
//
//   corrected = score + bias   chooses, never weighs
//   n_group > 1: groups of experts / n_group consecutive experts; a group's
//     score is the sum of its two largest corrected scores (one expert a group:
//     that one); the topk_group best groups stay, the rest are out, also when
//     what is left is negative
//   the top_k largest corrected scores, descending
//   equal scores: lower id first, for groups and for experts
//   gate = score of the chosen; normalize: / (sum in slot order + 1e-20);
//     * scale; all fp32

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "routing/route_table.h"

namespace trunkline::routing {

inline constexpr int64_t kGroupsMax = 1024;

struct RouterPolicy {
  int64_t experts = 0;
  int64_t top_k = 0;
  int64_t n_group = 1;
  int64_t topk_group = 1;
  bool normalize = true;
  float scale = 1.0f;
};

// INVALID_ARGUMENT naming the field and value for a policy that is not well
// defined.
absl::Status ValidatePolicy(const RouterPolicy& policy);

// scores: [rows, experts] fp32 after the score transform; bias: [experts] or
// empty. Fills `table` with rows * top_k routes, all accepted (dropless), in
// (row, slot) order. INVALID_ARGUMENT with row and expert when a score is not
// finite. Reuses the table's memory: no allocation once it has grown.
absl::Status SelectRoutes(const RouterPolicy& policy,
                          std::span<const float> scores, int64_t rows,
                          std::span<const float> bias, RouteTable* table);

}  // namespace trunkline::routing
