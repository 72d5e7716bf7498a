#include "trunk_worker/expert_link_stats.h"

#include <utility>

namespace trunkline::trunk {

void ExchangeRecorder::CountRoutes(LayerIndex layer,
                                   const routing::RouteTable& table,
                                   const dispatch::ExchangeCounters& counters,
                                   bool executed) {
  std::lock_guard<std::mutex> lock(mutex_);
  ++stats_.calls;
  if (!executed) ++stats_.calls_failed;
  dispatch::ExchangeCounters& sum = stats_.routes;
  sum.routes_sent += counters.routes_sent;
  sum.routes_done += counters.routes_done;
  sum.routes_retried += counters.routes_retried;
  sum.late_answers += counters.late_answers;
  sum.refusals += counters.refusals;
  sum.workers_failed += counters.workers_failed;
  sum.deadlines_missed += counters.deadlines_missed;

  control::ExpertLoadReport& load = loads_[layer];
  load.layer = layer;
  load.selected.resize(table.experts, 0);
  load.executed.resize(table.experts, 0);
  for (int64_t r = 0; r < table.size(); ++r) {
    ++load.selected[table.expert_id[r].value];
    if (executed && table.fate[r] == routing::RouteFate::kAccepted)
      ++load.executed[table.expert_id[r].value];
  }
}

ExchangeStats ExchangeRecorder::stats() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return stats_;
}

std::vector<control::ExpertLoadReport> ExchangeRecorder::TakeLoads() {
  std::map<LayerIndex, control::ExpertLoadReport> taken;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    taken.swap(loads_);
  }
  std::vector<control::ExpertLoadReport> loads;
  loads.reserve(taken.size());
  for (auto& [unused, load] : taken) loads.push_back(std::move(load));
  return loads;
}

}  // namespace trunkline::trunk
