// The contracts of the hand-off and of where routes ran.

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "routing/layer_checks.h"

namespace trunkline::routing {
namespace {

using Broken = std::optional<std::string>;

template <typename... Args>
Broken Because(const Args&... why) {
  return absl::StrCat(why...);
}

std::string KeyText(const RouteTable& t, size_t r) {
  return absl::StrCat("token ", t.token_id[r], ", slot ", t.selected_slot[r]);
}

Broken HandoffRoutes(const LayerRecord& r, const ExecutionEvidence*) {
  std::vector<int> times(r.table.token_id.size(), 0);
  for (uint32_t i : r.handoff_routes) ++times[i];
  for (size_t i = 0; i < times.size(); ++i) {
    const int expected = r.table.fate[i] == RouteFate::kAccepted ? 1 : 0;
    if (times[i] != expected) {
      return Because(KeyText(r.table, i), " is handed over ", times[i],
                     " times, not ", expected);
    }
  }
  return std::nullopt;
}

Broken HandoffOrder(const LayerRecord& r, const ExecutionEvidence*) {
  const RouteTable& t = r.table;
  const auto key = [&](uint32_t i) {
    return std::tuple(t.expert_id[i].value, t.token_id[i], t.selected_slot[i]);
  };
  for (size_t i = 1; i < r.handoff_routes.size(); ++i) {
    if (key(r.handoff_routes[i - 1]) < key(r.handoff_routes[i])) continue;
    return Because("packed row ", i, " (expert ",
                   t.expert_id[r.handoff_routes[i]].value, ", ",
                   KeyText(t, r.handoff_routes[i]),
                   ") does not come after the row before");
  }
  return std::nullopt;
}

Broken LocalRows(const LayerRecord& r, const ExecutionEvidence*) {
  std::vector<uint32_t> next(static_cast<size_t>(r.table.experts), 0);
  for (size_t i = 0; i < r.handoff_routes.size(); ++i) {
    const uint32_t expert = r.table.expert_id[r.handoff_routes[i]].value;
    if (r.expert_local_row[i] != next[expert]) {
      return Because("packed row ", i, " of expert ", expert,
                     " has the local row ", r.expert_local_row[i], ", not ",
                     next[expert]);
    }
    ++next[expert];
  }
  return std::nullopt;
}

Broken Offsets(const LayerRecord& r, const ExecutionEvidence*) {
  std::vector<uint32_t> count(static_cast<size_t>(r.table.experts), 0);
  for (uint32_t i : r.handoff_routes) ++count[r.table.expert_id[i].value];
  if (r.prefix_offsets[0] != 0) {
    return Because("the first offset is ", r.prefix_offsets[0]);
  }
  for (size_t e = 0; e < count.size(); ++e) {
    if (r.expert_counts[e] != count[e]) {
      return Because("expert ", e, " has ", count[e], " rows, counted ",
                     r.expert_counts[e]);
    }
    if (r.prefix_offsets[e + 1] != r.prefix_offsets[e] + count[e]) {
      return Because("the offset after expert ", e, " is ",
                     r.prefix_offsets[e + 1], ", not ",
                     r.prefix_offsets[e] + count[e]);
    }
  }
  return std::nullopt;
}

Broken Representation(const LayerRecord& r, const ExecutionEvidence*) {
  RowLayout layout;
  const absl::Status status = LayOutRows(r.table, r.representation, &layout);
  if (!status.ok()) return std::string(status.message());
  if (r.represented_rows != layout.represented_rows() ||
      r.tail_rows != layout.tail_rows()) {
    return Because("the form ", Name(r.representation.form), " makes ",
                   layout.represented_rows(), " rows, ", layout.tail_rows(),
                   " of them padding; the record says ", r.represented_rows,
                   " and ", r.tail_rows);
  }
  return std::nullopt;
}

Broken CoverageClaim(const LayerRecord& r, const ExecutionEvidence*) {
  if (!r.claims_every_token_covered) return std::nullopt;
  std::vector<bool> covered(static_cast<size_t>(r.table.rows), false);
  for (size_t i = 0; i < r.table.token_id.size(); ++i) {
    if (r.table.fate[i] == RouteFate::kAccepted) {
      covered[r.table.token_id[i]] = true;
    }
  }
  const auto bare = std::find(covered.begin(), covered.end(), false);
  if (bare == covered.end()) return std::nullopt;
  return Because("token ", bare - covered.begin(),
                 " has no accepted route; a mean degree guarantees none");
}

Broken PaddingClaim(const LayerRecord& r, const ExecutionEvidence*) {
  if (!r.claims_no_padding || r.tail_rows == 0) return std::nullopt;
  return Because(r.tail_rows, " of ", r.represented_rows,
                 " rows are padding; dropless is not free of it");
}

// A frame of a layer: its worker, and which of the frames to it.
using FrameKey = std::pair<WorkerId, uint16_t>;

Broken PhysicalPlan(const LayerRecord& r, const ExecutionEvidence*) {
  if (r.physical.empty()) return std::nullopt;
  if (!r.placement_version.valid() || r.placement_version.value == 0) {
    return Because("routes ran under no placement version");
  }
  std::map<uint32_t, std::pair<WorkerId, uint32_t>> home;   // of an expert
  std::map<FrameKey, std::map<uint32_t, uint32_t>> frames;  // token -> row
  for (size_t i = 0; i < r.physical.size(); ++i) {
    const PhysicalRoute& p = r.physical[i];
    const uint32_t route = r.handoff_routes[i];
    const uint32_t expert = r.table.expert_id[route].value;
    if (!p.worker.valid() || !p.origin.valid()) {
      return Because(KeyText(r.table, route), " ran on no worker");
    }
    if (!p.placement_version.valid() || p.placement_version.value == 0 ||
        p.placement_version > r.placement_version) {
      return Because(KeyText(r.table, route), " ran under placement version ",
                     p.placement_version.value, ", the newest in use was ",
                     r.placement_version.value);
    }
    const auto [at, fresh] =
        home.emplace(expert, std::pair(p.worker, p.replica));
    if (!fresh && at->second != std::pair(p.worker, p.replica)) {
      return Because("expert ", expert, " ran on worker ",
                     at->second.first.value, " and on worker ", p.worker.value);
    }
    auto& rows = frames[FrameKey(p.worker, p.attempt)];
    const auto row = rows.emplace(r.table.token_id[route], p.send_offset);
    if (row.first->second != p.send_offset) {
      return Because(KeyText(r.table, route), ": its row was sent to worker ",
                     p.worker.value, " twice in one frame");
    }
  }
  for (const auto& [frame, rows] : frames) {
    uint32_t next = 0;
    for (const auto& [token, row] : rows) {
      if (row == next++) continue;
      return Because("token ", token, " is row ", row, " of a frame to worker ",
                     frame.first.value, " where its place is row ", next - 1);
    }
  }
  return std::nullopt;
}

Broken CompletionOf(const LayerRecord& r, const ExecutionEvidence*) {
  std::set<std::pair<FrameKey, uint32_t>> taken;
  for (size_t i = 0; i < r.physical.size(); ++i) {
    const PhysicalRoute& p = r.physical[i];
    const std::string key = KeyText(r.table, r.handoff_routes[i]);
    if (p.state != Completion::kDone && p.state != Completion::kRetried) {
      return Because(key, " was accepted and did not complete");
    }
    if (!taken.emplace(FrameKey(p.worker, p.attempt), p.receive_offset)
             .second) {
      return Because(key, " shares row ", p.receive_offset, " of worker ",
                     p.worker.value, "'s answer with another route");
    }
  }
  return std::nullopt;
}

}  // namespace

std::vector<RouteCheck> HandoffChecks() {
  return {
      {RouteContract::kHandoffRoutes, HandoffRoutes},
      {RouteContract::kHandoffOrder, HandoffOrder},
      {RouteContract::kLocalRows, LocalRows},
      {RouteContract::kOffsets, Offsets},
      {RouteContract::kRepresentation, Representation},
      {RouteContract::kCoverageClaim, CoverageClaim},
      {RouteContract::kPaddingClaim, PaddingClaim},
      {RouteContract::kPhysicalPlan, PhysicalPlan},
      {RouteContract::kCompletion, CompletionOf},
  };
}

}  // namespace trunkline::routing
