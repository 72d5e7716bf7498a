#include "dispatch/dispatch_plan.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace trunkline::dispatch {
namespace {

absl::Status NoReplicaError(const placement::LayerPlacement& placement,
                            uint32_t expert) {
  std::vector<uint32_t> dead;
  for (const placement::Replica& r : placement.replicas[expert]) {
    dead.push_back(r.worker.value);
  }
  return absl::UnavailableError(absl::StrCat(
      "layer ", placement.layer.value, ", expert ", expert,
      ": no live worker holds it (",
      dead.empty()
          ? std::string("the placement names none")
          : absl::StrCat("placed on worker ", absl::StrJoin(dead, ", worker ")),
      ")"));
}

}  // namespace

absl::Status DispatchPlanner::CountRoutes(
    const routing::RouteTable& table, std::span<const uint32_t> subset,
    const placement::LayerPlacement& placement) {
  const auto routes = static_cast<uint32_t>(table.size());
  const size_t experts = placement.replicas.size();
  planned_.clear();
  if (subset.empty()) {
    for (uint32_t r = 0; r < routes; ++r) {
      if (table.fate[r] == routing::RouteFate::kAccepted) planned_.push_back(r);
    }
  } else {
    for (size_t i = 0; i < subset.size(); ++i) {
      const uint32_t r = subset[i];
      if (r >= routes || table.fate[r] != routing::RouteFate::kAccepted ||
          (i > 0 && subset[i - 1] >= r)) {
        return absl::InvalidArgumentError(absl::StrCat(
            "layer ", placement.layer.value, ": route row ", r,
            " can not be planned: rows ascend and name accepted routes (of ",
            routes, ")"));
      }
      planned_.push_back(r);
    }
  }
  expert_begin_.assign(experts + 1, 0);
  for (uint32_t r : planned_) {
    const uint32_t expert = table.expert_id[r].value;
    if (expert >= experts) {
      return absl::InvalidArgumentError(absl::StrCat(
          "layer ", placement.layer.value, ": token ", table.token_id[r],
          ", slot ", table.selected_slot[r], " chose expert ", expert,
          ", the placement has ", experts));
    }
    if (table.token_id[r] >= table.rows) {
      return absl::InvalidArgumentError(
          absl::StrCat("layer ", placement.layer.value, ": route row ", r,
                       " names token ", table.token_id[r], " of ", table.rows));
    }
    ++expert_begin_[expert + 1];
  }
  used_experts_.clear();
  for (uint32_t e = 0; e < experts; ++e) {
    if (expert_begin_[e + 1] > 0) used_experts_.push_back(e);
    expert_begin_[e + 1] += expert_begin_[e];
  }
  // The table is in (token, slot) order, so a stable counting sort by expert
  // gives (expert, token, slot). expert_begin_[e] walks to the end of its part
  // and is moved back afterwards.
  by_expert_.resize(planned_.size());
  for (uint32_t r : planned_) {
    by_expert_[expert_begin_[table.expert_id[r].value]++] = r;
  }
  for (size_t e = experts; e > 0; --e) expert_begin_[e] = expert_begin_[e - 1];
  expert_begin_[0] = 0;
  return absl::OkStatus();
}

void DispatchPlanner::BeginAssignment(std::span<const WorkerId> live,
                                      std::span<const WorkerCost> costs) {
  live_costs_.clear();
  size_t at = 0;
  for (const WorkerId worker : live) {
    while (at < costs.size() && costs[at].worker < worker) ++at;
    if (at < costs.size() && costs[at].worker == worker)
      live_costs_.push_back(costs[at]);
  }
  if (live_costs_.size() == live.size()) {
    assignment_.Begin(live_costs_);
  } else {
    assignment_.Begin(static_cast<uint32_t>(live.size()));
  }
}

absl::Status DispatchPlanner::AssignReplicas(
    const placement::LayerPlacement& placement, std::span<const WorkerId> live,
    std::span<const WorkerCost> costs) {
  BeginAssignment(live, costs);
  for (uint32_t e : used_experts_) {
    candidates_.clear();
    for (const placement::Replica& replica : placement.replicas[e]) {
      const auto at =
          std::lower_bound(live.begin(), live.end(), replica.worker);
      if (at != live.end() && *at == replica.worker) {
        candidates_.push_back(static_cast<uint32_t>(at - live.begin()));
      }
    }
    if (candidates_.empty()) return NoReplicaError(placement, e);
    assignment_.AddExpert(expert_begin_[e + 1] - expert_begin_[e], candidates_);
  }
  assignment_.Solve();
  return absl::OkStatus();
}

WorkerShare DispatchPlanner::TakeShare() {
  WorkerShare share;
  if (!spare_.empty()) {
    share = std::move(spare_.back());
    spare_.pop_back();
  }
  share.rows.clear();
  share.routes.clear();
  share.row_of_route.clear();
  return share;
}

void DispatchPlanner::FillShares(const routing::RouteTable& table,
                                 std::span<const WorkerId> live,
                                 DispatchPlan* plan) {
  constexpr uint32_t kNoShare = UINT32_MAX;
  share_of_.assign(live.size(), kNoShare);
  for (uint32_t i = 0; i < used_experts_.size(); ++i) {
    share_of_[assignment_.worker_of(i)] = 0;
  }
  for (size_t w = 0; w < live.size(); ++w) {
    if (share_of_[w] == kNoShare) continue;
    share_of_[w] = static_cast<uint32_t>(plan->shares.size());
    plan->shares.push_back(TakeShare());
    plan->shares.back().worker = live[w];
  }
  for (uint32_t i = 0; i < used_experts_.size(); ++i) {
    WorkerShare& share = plan->shares[share_of_[assignment_.worker_of(i)]];
    const uint32_t expert = used_experts_[i];
    share.routes.insert(share.routes.end(),
                        by_expert_.begin() + expert_begin_[expert],
                        by_expert_.begin() + expert_begin_[expert + 1]);
  }
  row_of_token_.resize(static_cast<size_t>(table.rows));
  for (WorkerShare& share : plan->shares) FillRows(table, &share);
}

// Each token once, ascending: a bit a token, read in order.
void DispatchPlanner::FillRows(const routing::RouteTable& table,
                               WorkerShare* share) {
  token_bits_.assign((static_cast<size_t>(table.rows) + 63) / 64, 0);
  for (uint32_t r : share->routes) {
    token_bits_[table.token_id[r] / 64] |= uint64_t{1}
                                           << (table.token_id[r] % 64);
  }
  for (size_t word = 0; word < token_bits_.size(); ++word) {
    for (uint64_t bits = token_bits_[word]; bits != 0; bits &= bits - 1) {
      const auto token = static_cast<uint32_t>(
          word * 64 + static_cast<size_t>(std::countr_zero(bits)));
      row_of_token_[token] = static_cast<uint32_t>(share->rows.size());
      share->rows.push_back(token);
    }
  }
  share->row_of_route.reserve(share->routes.size());
  for (uint32_t r : share->routes) {
    share->row_of_route.push_back(row_of_token_[table.token_id[r]]);
  }
}

absl::Status DispatchPlanner::Plan(const routing::RouteTable& table,
                                   std::span<const uint32_t> subset,
                                   const placement::LayerPlacement& placement,
                                   PlacementVersion version,
                                   std::span<const WorkerId> live,
                                   DispatchPlan* plan,
                                   std::span<const WorkerCost> costs) {
  plan->version = version;
  plan->layer = placement.layer;
  for (WorkerShare& share : plan->shares) spare_.push_back(std::move(share));
  plan->shares.clear();
  absl::Status status = CountRoutes(table, subset, placement);
  if (status.ok()) status = AssignReplicas(placement, live, costs);
  if (status.ok()) FillShares(table, live, plan);
  return status;
}

absl::StatusOr<DispatchPlan> PlanDispatch(
    const routing::RouteTable& table, std::span<const uint32_t> subset,
    const placement::LayerPlacement& placement, PlacementVersion version,
    std::span<const WorkerId> live, std::span<const WorkerCost> costs) {
  DispatchPlanner planner;
  DispatchPlan plan;
  absl::Status status =
      planner.Plan(table, subset, placement, version, live, &plan, costs);
  if (!status.ok()) return status;
  return plan;
}

}  // namespace trunkline::dispatch
