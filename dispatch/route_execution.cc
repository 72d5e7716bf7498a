// What a finished exchange can tell about each of its routes.

#include <algorithm>

#include "dispatch/layer_exchange.h"

namespace trunkline::dispatch {
namespace {

uint32_t ReplicaOf(const placement::LayerPlacement& placement, ExpertId expert,
                   WorkerId worker) {
  const std::vector<placement::Replica>& replicas =
      placement.replicas[expert.value];
  const auto at =
      std::find_if(replicas.begin(), replicas.end(),
                   [&](const auto& r) { return r.worker == worker; });
  return at == replicas.end() ? UINT32_MAX
                              : static_cast<uint32_t>(at - replicas.begin());
}

}  // namespace

void LayerExchange::DescribeExecution(
    std::vector<RouteExecution>* executions) const {
  executions->assign(static_cast<size_t>(table_->size()), RouteExecution());
  for (uint32_t f = 0; f < flights_used_; ++f) {
    const WorkerShare& share = flights_[f]->share;
    uint32_t local_row = 0;
    for (size_t i = 0; i < share.routes.size(); ++i) {
      const uint32_t r = share.routes[i];
      const ExpertId expert = table_->expert_id[r];
      // A share's routes ascend by expert.
      const bool same =
          i > 0 && table_->expert_id[share.routes[i - 1]] == expert;
      local_row = same ? local_row + 1 : 0;
      // An earlier frame that was given up says nothing about the route.
      if (flight_of_route_[r] != f) continue;
      RouteExecution& e = (*executions)[r];
      e.worker = share.worker;
      e.attempt = flights_[f]->attempt;
      e.version = flights_[f]->version;
      e.replica = ReplicaOf(*placement_, expert, share.worker);
      e.send_offset = share.row_of_route[i];
      e.receive_offset = answers_[r].row;
      e.local_row = local_row;
    }
  }
}

routing::PhysicalRoute PhysicalOf(WorkerId origin, const RouteExecution& e) {
  routing::PhysicalRoute p;
  p.origin = origin;
  p.worker = e.worker;
  p.attempt = e.attempt;
  p.replica = e.replica;
  p.send_offset = e.send_offset;
  p.receive_offset = e.receive_offset;
  p.local_row = e.local_row;
  p.placement_version = e.version;
  p.state = e.attempt > 0 ? routing::Completion::kRetried
                          : routing::Completion::kDone;
  return p;
}

}  // namespace trunkline::dispatch
