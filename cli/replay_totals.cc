#include "cli/replay_totals.h"

#include <algorithm>

#include "common/status_macros.h"
#include "dispatch/dispatch_plan.h"

namespace trunkline::cli {
namespace {

using routing::ReplayResult;
using routing::RouteLedger;
using routing::StageBytes;
using routing::WorkerLoad;

void AddCounts(const std::vector<int64_t>& one, std::vector<int64_t>* sum) {
  sum->resize(std::max(sum->size(), one.size()), 0);
  for (size_t i = 0; i < one.size(); ++i) (*sum)[i] += one[i];
}

void AddLedger(const RouteLedger& one, RouteLedger* sum) {
  sum->rows += one.rows;
  sum->experts = one.experts;
  sum->requested += one.requested;
  sum->accepted += one.accepted;
  sum->dropped += one.dropped;
  sum->not_drawn += one.not_drawn;
  sum->rerouted += one.rerouted;
  sum->unused += one.unused;
  sum->uncovered += one.uncovered;
  sum->selected_gate_mass += one.selected_gate_mass;
  sum->executed_gate_mass += one.executed_gate_mass;
  AddCounts(one.selected, &sum->selected);
  AddCounts(one.executed, &sum->executed);
  const int64_t reserved = sum->accepted + sum->unused;
  sum->utilization = reserved == 0 ? 1.0
                                   : static_cast<double>(sum->accepted) /
                                         static_cast<double>(reserved);
  sum->selected_load = routing::Summarize(sum->selected);
  sum->executed_load = routing::Summarize(sum->executed);
}

void AddWorkers(const std::vector<WorkerLoad>& one,
                std::vector<WorkerLoad>* sum) {
  for (const WorkerLoad& load : one) {
    auto at = std::lower_bound(
        sum->begin(), sum->end(), load.worker,
        [](const WorkerLoad& l, WorkerId worker) { return l.worker < worker; });
    if (at == sum->end() || at->worker != load.worker) {
      sum->insert(at, load);
      continue;
    }
    at->distinct_experts =
        std::max(at->distinct_experts, load.distinct_experts);
    at->routes += load.routes;
    at->rows += load.rows;
    at->bytes_out += load.bytes_out;
    at->bytes_back += load.bytes_back;
  }
}

}  // namespace

void AddReplay(const ReplayResult& one, ReplayTotals* totals) {
  ReplayResult& sum = totals->sum;
  const bool first = totals->layer_steps++ == 0;
  sum.record.policy = one.record.policy;
  sum.record.admission = one.record.admission;
  sum.record.representation = one.record.representation;
  sum.record.tied_rows += one.record.tied_rows;
  AddLedger(one.ledger, &sum.ledger);
  sum.layout.semantic_rows += one.layout.semantic_rows;
  sum.layout.represented_rows += one.layout.represented_rows;
  sum.layout.tail_rows += one.layout.tail_rows;
  AddWorkers(one.workers, &sum.workers);
  sum.retained_bytes += one.retained_bytes;
  if (first) {
    sum.traffic = one.traffic;
    sum.live = one.live;
    return;
  }
  for (size_t i = 0; i < sum.traffic.size(); ++i)
    sum.traffic[i].bytes += one.traffic[i].bytes;
  for (size_t i = 0; i < sum.live.size(); ++i)
    sum.live[i].bytes = std::max(sum.live[i].bytes, one.live[i].bytes);
}

void AddSweep(const routing::Sweep& one, routing::Sweep* sum) {
  if (sum->points.empty()) {
    *sum = one;
    for (routing::SweepPoint& point : sum->points) {
      ReplayTotals totals;
      AddReplay(point.result, &totals);
      point.result = std::move(totals.sum);
    }
    return;
  }
  for (size_t i = 0; i < sum->points.size(); ++i) {
    ReplayTotals totals;
    totals.layer_steps = 1;
    totals.sum = std::move(sum->points[i].result);
    AddReplay(one.points[i].result, &totals);
    sum->points[i].result = std::move(totals.sum);
  }
}

absl::StatusOr<std::vector<WorkerId>> OwnersUnder(
    const routing::RouteTable& table, const placement::LayerPlacement& placed) {
  std::vector<WorkerId> owners, live;
  for (const std::vector<placement::Replica>& replicas : placed.replicas) {
    owners.push_back(replicas.front().worker);
    for (const placement::Replica& replica : replicas)
      live.push_back(replica.worker);
  }
  std::sort(live.begin(), live.end());
  live.erase(std::unique(live.begin(), live.end()), live.end());
  TL_ASSIGN_OR_RETURN(
      const dispatch::DispatchPlan plan,
      dispatch::PlanDispatch(table, {}, placed, PlacementVersion(1), live));
  for (const dispatch::WorkerShare& share : plan.shares) {
    for (uint32_t route : share.routes)
      owners[table.expert_id[route].value] = share.worker;
  }
  return owners;
}

}  // namespace trunkline::cli
