#include "coordinator/rebalance.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace trunkline::coordinator {

absl::StatusOr<RebalanceSnapshot> TakeSnapshot(const Coordinator& core) {
  const PlacementRecord* active = core.driver().Active();
  if (active == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("no placement is active: ", core.View().waiting_for));
  }
  if (const PlacementRecord* open = core.driver().OpenChange();
      open != nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "placement version ", open->map.version.value, " (", open->origin,
        ") is ", Name(open->state), "; one change at a time"));
  }
  RebalanceSnapshot snapshot;
  snapshot.layers = core.cluster().model->moe_layers;
  snapshot.loads = core.loads().Averages();
  snapshot.workers = core.membership().UsableExperts();
  snapshot.current = active->map;
  for (const placement::PlacementMap* map : core.driver().HeldMaps()) {
    snapshot.held.push_back(*map);
  }
  for (const auto& [id, member] : core.membership().members()) {
    if (member.is(control::Role::kExpert)) snapshot.names[id] = member.name();
  }
  snapshot.replicas = core.options().driver.replicas;
  snapshot.load_bytes_per_second = core.driver().load_bytes_per_second();
  return snapshot;
}

absl::StatusOr<placement::BalancePlan> PlanRebalance(
    const RebalanceSnapshot& snapshot, const RebalanceOptions& options) {
  placement::BalanceRequest request;
  request.policy = options.policy;
  request.layers = snapshot.layers;
  request.loads = snapshot.loads;
  request.workers = snapshot.workers;
  request.current = &snapshot.current;
  for (const placement::PlacementMap& map : snapshot.held) {
    request.held.push_back(&map);
  }
  request.replicas =
      options.replicas != 0
          ? options.replicas
          // Fewer workers than copies: as many as there can be.
          : std::max<int64_t>(
                1, std::min<int64_t>(
                       snapshot.replicas,
                       static_cast<int64_t>(snapshot.workers.size())));
  request.slots_per_worker = options.slots_per_worker;
  request.max_moved_bytes = options.max_moved_bytes != 0
                                ? options.max_moved_bytes
                                : std::numeric_limits<uint64_t>::max();
  request.min_gain = options.min_gain;
  request.num_groups = options.num_groups;
  request.num_nodes = options.num_nodes;
  return placement::PlanBalance(request);
}

absl::StatusOr<placement::BalancePlan> PlanGivenMap(
    const RebalanceSnapshot& snapshot, const placement::PlacementMap& map) {
  TL_RETURN_IF_ERROR(placement::ValidatePlacement(map, snapshot.layers));
  TL_RETURN_IF_ERROR(placement::ValidateAgainstWorkers(map, snapshot.layers,
                                                       snapshot.workers));
  std::vector<const placement::PlacementMap*> held;
  for (const placement::PlacementMap& one : snapshot.held) {
    held.push_back(&one);
  }
  TL_RETURN_IF_ERROR(
      placement::ValidateStaging(held, map, snapshot.layers, snapshot.workers));
  placement::BalancePlan plan;
  plan.map = map;
  TL_ASSIGN_OR_RETURN(plan.diff, placement::DiffPlacements(
                                     snapshot.current, map, snapshot.layers));
  plan.before =
      placement::Predict(snapshot.current, snapshot.loads, snapshot.workers);
  plan.after = placement::Predict(map, snapshot.loads, snapshot.workers);
  plan.worthwhile = !plan.diff.empty();
  plan.reason = plan.worthwhile ? "as given" : "these are the active owners";
  return plan;
}

absl::Duration ExpectedLoadTime(const RebalanceSnapshot& snapshot,
                                const placement::PlacementDiff& diff) {
  uint64_t most = 0;
  for (const auto& [worker, bytes] : diff.bytes_by_worker) {
    most = std::max(most, bytes);
  }
  if (snapshot.load_bytes_per_second <= 0) return absl::ZeroDuration();
  return absl::Seconds(static_cast<double>(most) /
                       snapshot.load_bytes_per_second);
}

}  // namespace trunkline::coordinator
