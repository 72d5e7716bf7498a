#include "placement/balance.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "placement/eplb.h"
#include "placement/incremental.h"
#include "placement/repair.h"

namespace trunkline::placement {
namespace {

absl::Status Validate(const BalanceRequest& request) {
  const auto invalid = [](const std::string& what) {
    return absl::InvalidArgumentError("balance: " + what);
  };
  TL_RETURN_IF_ERROR(ValidateShapes(request.layers));
  TL_RETURN_IF_ERROR(ValidateLoads(request.loads, request.layers));
  if (request.workers.empty()) return invalid("no usable expert worker");
  for (size_t i = 0; i < request.workers.size(); ++i) {
    const WorkerProfile& profile = request.workers[i];
    if (!std::isfinite(profile.speed) || profile.speed <= 0) {
      return invalid(absl::StrCat("worker ", profile.worker.value,
                                  " has speed ", profile.speed));
    }
    if (i > 0 && request.workers[i - 1].worker >= profile.worker) {
      return invalid(absl::StrCat("worker ", profile.worker.value,
                                  " is out of order; workers ascend"));
    }
  }
  const int64_t workers = static_cast<int64_t>(request.workers.size());
  if (request.replicas < 1 || request.replicas > workers) {
    return invalid(absl::StrCat("replicas is ", request.replicas, " with ",
                                workers, " usable expert workers"));
  }
  if (request.slots_per_worker < 0) {
    return invalid(
        absl::StrCat("slots_per_worker is ", request.slots_per_worker));
  }
  for (const MoeLayerShape& shape : request.layers) {
    const int64_t least =
        (shape.experts * request.replicas + workers - 1) / workers;
    if (request.slots_per_worker != 0 && request.slots_per_worker < least) {
      return invalid(absl::StrCat("slots_per_worker is ",
                                  request.slots_per_worker, "; layer ",
                                  shape.layer.value, " needs ", least,
                                  " on each of ", workers, " workers"));
    }
  }
  if (!(request.min_gain >= 0 && request.min_gain < 1)) {
    return invalid(absl::StrCat("min_gain is ", request.min_gain,
                                ", 0 to below 1 is possible"));
  }
  if (request.current != nullptr) {
    TL_RETURN_IF_ERROR(ValidatePlacement(*request.current, request.layers));
  }
  return absl::OkStatus();
}

absl::StatusOr<PlacementMap> PlanStatic(const BalanceRequest& request) {
  std::vector<WorkerId> workers;
  for (const WorkerProfile& profile : request.workers) {
    workers.push_back(profile.worker);
  }
  return InitialPlacement(PlacementVersion(), request.layers,
                          std::move(workers), request.replicas);
}

// Slots per worker and layer for eplb: as asked, or as many as the layer has
// copies now, rounded so that every worker has the same.
int64_t EplbSlots(const BalanceRequest& request, const MoeLayerShape& shape) {
  if (request.slots_per_worker != 0) return request.slots_per_worker;
  const int64_t workers = static_cast<int64_t>(request.workers.size());
  int64_t copies = shape.experts * request.replicas;
  if (request.current != nullptr) {
    int64_t now = 0;
    for (const auto& replicas :
         request.current->FindLayer(shape.layer)->replicas) {
      now += static_cast<int64_t>(replicas.size());
    }
    copies = std::max(copies, now);
  }
  return (copies + workers - 1) / workers;
}

absl::StatusOr<PlacementMap> PlanEplb(const BalanceRequest& request) {
  PlacementMap map;
  const int64_t workers = static_cast<int64_t>(request.workers.size());
  for (const MoeLayerShape& shape : request.layers) {
    const LayerLoad* known = FindLoad(request.loads, shape.layer);
    const std::vector<double> load =
        known != nullptr
            ? known->load
            : std::vector<double>(static_cast<size_t>(shape.experts));
    const int64_t slots = EplbSlots(request, shape);
    TL_ASSIGN_OR_RETURN(const EplbResult result,
                        EplbPlace(load, {.num_replicas = slots * workers,
                                         .num_groups = request.num_groups,
                                         .num_nodes = request.num_nodes,
                                         .num_workers = workers}));
    LayerPlacement layer;
    layer.layer = shape.layer;
    layer.replicas.resize(load.size());
    for (size_t slot = 0; slot < result.expert_of_slot.size(); ++slot) {
      const size_t worker = slot / static_cast<size_t>(slots);
      auto& replicas =
          layer.replicas[static_cast<size_t>(result.expert_of_slot[slot])];
      const WorkerId id = request.workers[worker].worker;
      // Slots come worker by worker, so a second copy follows the first.
      if (!replicas.empty() && replicas.back().worker == id) continue;
      replicas.push_back({.worker = id, .slot = 0});
    }
    map.layers.push_back(std::move(layer));
  }
  AssignSlots(&map);
  return map;
}

// What the incremental policy starts from: the current map without what can not
// stay.
absl::StatusOr<RepairResult> StartingPoint(const BalanceRequest& request) {
  if (request.current != nullptr) {
    return RepairPlacement(*request.current, request.layers, request.workers,
                           request.held);
  }
  RepairResult result;
  TL_ASSIGN_OR_RETURN(result.map, PlanStatic(request));
  result.changed = true;
  return result;
}

absl::Status FinishPlan(const BalanceRequest& request, bool must_change,
                        BalancePlan* plan) {
  const PlacementMap nothing;
  const PlacementMap& current =
      request.current != nullptr ? *request.current : nothing;
  TL_RETURN_IF_ERROR(
      ValidateAgainstWorkers(plan->map, request.layers, request.workers));
  TL_RETURN_IF_ERROR(ValidateStaging(request.held, plan->map, request.layers,
                                     request.workers));
  TL_ASSIGN_OR_RETURN(plan->diff,
                      DiffPlacements(current, plan->map, request.layers));
  plan->before = Predict(current, request.loads, request.workers);
  plan->after = Predict(plan->map, request.loads, request.workers);
  if (must_change) {
    plan->worthwhile = true;
    plan->reason = request.current == nullptr
                       ? "nothing is placed yet"
                       : "the current placement names workers that can not "
                         "stay";
    return absl::OkStatus();
  }
  const std::string gain = absl::StrFormat("%.1f%%", 100 * plan->gain());
  const std::string least = absl::StrFormat("%.1f%%", 100 * request.min_gain);
  plan->worthwhile = !plan->diff.empty() && plan->gain() >= request.min_gain &&
                     plan->diff.bytes <= request.max_moved_bytes;
  if (plan->worthwhile) {
    plan->reason = absl::StrCat("the slowest worker wins ", gain);
    return absl::OkStatus();
  }
  if (plan->diff.empty()) {
    plan->reason = "nothing better was found within the limits";
  } else if (plan->diff.bytes > request.max_moved_bytes) {
    plan->reason = absl::StrCat("it would move ", plan->diff.bytes,
                                " bytes, at most ", request.max_moved_bytes);
  } else {
    plan->reason = absl::StrCat("the slowest worker would win ", gain,
                                ", less than ", least);
  }
  plan->map = current;
  plan->map.version = PlacementVersion();
  plan->after = plan->before;
  plan->diff = PlacementDiff();
  return absl::OkStatus();
}

}  // namespace

const char* Name(BalancePolicy policy) {
  switch (policy) {
    case BalancePolicy::kStatic:
      return "static";
    case BalancePolicy::kEplb:
      return "eplb";
    case BalancePolicy::kIncremental:
      return "incremental";
  }
  return "unknown policy";
}

absl::StatusOr<BalancePolicy> ParseBalancePolicy(absl::string_view name) {
  for (const BalancePolicy policy :
       {BalancePolicy::kStatic, BalancePolicy::kEplb,
        BalancePolicy::kIncremental}) {
    if (name == Name(policy)) return policy;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("policy '", name, "' is none of static, eplb, incremental"));
}

absl::StatusOr<BalancePlan> PlanBalance(const BalanceRequest& request) {
  TL_RETURN_IF_ERROR(Validate(request));
  BalancePlan plan;
  bool must_change = request.current == nullptr;
  switch (request.policy) {
    case BalancePolicy::kStatic: {
      TL_ASSIGN_OR_RETURN(plan.map, PlanStatic(request));
      break;
    }
    case BalancePolicy::kEplb: {
      TL_ASSIGN_OR_RETURN(plan.map, PlanEplb(request));
      break;
    }
    case BalancePolicy::kIncremental: {
      TL_ASSIGN_OR_RETURN(const RepairResult start, StartingPoint(request));
      must_change = start.changed;
      plan.map = ImproveIncrementally(request, start.map);
      break;
    }
  }
  TL_RETURN_IF_ERROR(FinishPlan(request, must_change, &plan));
  return plan;
}

}  // namespace trunkline::placement
