#pragma once

// What the placement commands print for people. Pure: the operator service's
// messages in, text out; every line is ended.

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "placement/placement_diff.h"
#include "proto/placement_admin.pb.h"

namespace trunkline::cli {

namespace admin = ::trunkline::admin::v1;

// "active" for PLACEMENT_STATE_ACTIVE.
std::string StateName(control::v1::PlacementState state);

std::string ShowText(const admin::ShowResponse& show);
std::string HistoryText(const admin::HistoryResponse& history);

using WorkerNames = std::map<uint32_t, std::string>;
WorkerNames NamesOf(const admin::ListWorkersResponse& workers);

// At most `moves_max` moves are listed, with a line that counts the others.
std::string PlanText(const admin::PlanResponse& plan, const WorkerNames& names,
                     size_t moves_max);
// The same for programs; the document is an object, not a text.
nlohmann::ordered_json PlanJson(const admin::PlanResponse& plan);

// What lies between two placements, each with the name the command line gave.
struct DiffReport {
  std::string from, to;  // "version 3", "plan.json"
  placement::PlacementDiff diff;
  WorkerNames names;
};
std::string DiffText(const DiffReport& report, size_t moves_max);
nlohmann::ordered_json DiffJson(const DiffReport& report);

}  // namespace trunkline::cli
