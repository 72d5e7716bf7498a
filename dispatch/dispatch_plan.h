#pragma once

// From accepted routes and a placement to what each worker gets
// (architecture.md, "The way of a token" 4). Pure. A row is sent once per
// destination worker even if several of its experts live there.

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/ids.h"
#include "dispatch/replica_assignment.h"
#include "placement/placement_map.h"
#include "routing/route_table.h"

namespace trunkline::dispatch {

// One worker's share of one layer of one step. Order is fixed: rows ascending,
// routes by (expert, token, slot), so equal inputs give equal frames.
struct WorkerShare {
  WorkerId worker;
  std::vector<uint32_t> rows;    // token ids of the step, ascending, distinct
  std::vector<uint32_t> routes;  // route rows of the RouteTable
  std::vector<uint32_t>
      row_of_route;  // parallel to routes: index into rows (the send offset)
};

struct DispatchPlan {
  PlacementVersion version;
  LayerIndex layer;
  std::vector<WorkerShare> shares;  // ascending by worker, none empty
};

// Routes to plan: every accepted route of the table, or only `subset` (route
// rows, ascending) when it is not empty (a retry). live: workers that may be
// used, ascending. With several live replicas the choice is deterministic and
// keeps the slowest worker's time small (replica_assignment.h). costs:
// ascending by worker; when a live worker has none, all count alike.
// UNAVAILABLE naming layer, expert and its dead workers when no replica is
// live.
absl::StatusOr<DispatchPlan> PlanDispatch(
    const routing::RouteTable& table, std::span<const uint32_t> subset,
    const placement::LayerPlacement& placement, PlacementVersion version,
    std::span<const WorkerId> live, std::span<const WorkerCost> costs = {});

// The same with memory that is kept between calls: nothing is allocated once
// the vectors have grown. One planner a thread.
class DispatchPlanner {
 public:
  // On an error the plan is empty.
  absl::Status Plan(const routing::RouteTable& table,
                    std::span<const uint32_t> subset,
                    const placement::LayerPlacement& placement,
                    PlacementVersion version, std::span<const WorkerId> live,
                    DispatchPlan* plan, std::span<const WorkerCost> costs = {});

 private:
  absl::Status CountRoutes(const routing::RouteTable& table,
                           std::span<const uint32_t> subset,
                           const placement::LayerPlacement& placement);
  absl::Status AssignReplicas(const placement::LayerPlacement& placement,
                              std::span<const WorkerId> live,
                              std::span<const WorkerCost> costs);
  void BeginAssignment(std::span<const WorkerId> live,
                       std::span<const WorkerCost> costs);
  void FillShares(const routing::RouteTable& table,
                  std::span<const WorkerId> live, DispatchPlan* plan);
  void FillRows(const routing::RouteTable& table, WorkerShare* share);
  WorkerShare TakeShare();

  std::vector<uint32_t> planned_;       // route rows
  std::vector<uint32_t> expert_begin_;  // [experts + 1] into by_expert_
  std::vector<uint32_t> by_expert_;     // route rows by (expert, token, slot)
  std::vector<uint32_t> used_experts_;  // ascending
  std::vector<uint32_t> candidates_;    // of one expert
  std::vector<uint32_t> share_of_;      // [live] index into the plan's shares
  std::vector<uint64_t> token_bits_;    // rows of one share
  std::vector<uint32_t> row_of_token_;  // index into the share's rows
  std::vector<WorkerCost> live_costs_;  // [live]
  ReplicaAssignment assignment_;
  std::vector<WorkerShare> spare_;  // memory of earlier shares
};

}  // namespace trunkline::dispatch
