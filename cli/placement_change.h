#pragma once

// What plan, apply, rollback and rebalance share.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "cli/admin_client.h"
#include "cli/change_wait.h"

namespace trunkline::cli {

// --policy, --max-moved-bytes, --min-gain and the rest of a plan's limits.
struct PlanFlags {
  std::string policy = "incremental";
  int64_t replicas = 0, slots_per_worker = 0, max_moved_bytes = 0;
  int64_t num_groups = 1, num_nodes = 1;
  double min_gain = 0.05;
};
void AddPlanFlags(CLI::App* command, PlanFlags* flags);
admin::PlanRequest MakePlanRequest(const PlanFlags& flags);

constexpr size_t kMovesListed = 20;
inline size_t MovesListed(bool all) { return all ? SIZE_MAX : kMovesListed; }

// The plan on stdout, as text or JSON.
absl::Status PrintPlan(const AdminClient& client,
                       const admin::PlanResponse& plan, bool as_json, bool all);

// Waits until `version` is active and says so on stdout (on stderr under
// as_json, where stdout holds JSON alone).
absl::Status FollowChange(const std::string& command, const AdminClient& client,
                          const WaitFlags& flags, uint64_t version,
                          bool as_json);

// The text of a file, "-": of stdin. NOT_FOUND names the file.
absl::StatusOr<std::string> ReadDocument(const std::string& path);
// To a file, "": to stdout.
absl::Status WriteDocument(const std::string& path, const std::string& text);

}  // namespace trunkline::cli
