#include "sim/scale.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/random.h"
#include "common/status_macros.h"
#include "dispatch/dispatch_plan.h"
#include "dispatch/expert_frame.h"
#include "placement/placement_diff.h"
#include "placement/repair.h"

namespace trunkline::sim {
namespace {

absl::Duration At(double bytes, double bytes_per_second) {
  return absl::Seconds(bytes / bytes_per_second);
}

routing::RouteTable UniformRoutes(const ScaleShape& shape, int tokens,
                                  RandomStream* random) {
  routing::RouteTable table;
  table.Clear(tokens, shape.experts, shape.top_k);
  for (int t = 0; t < tokens; ++t) {
    std::vector<uint32_t> chosen;
    while (static_cast<int>(chosen.size()) < shape.top_k) {
      const auto e = static_cast<uint32_t>(
          random->NextBelow(static_cast<uint64_t>(shape.experts)));
      if (std::find(chosen.begin(), chosen.end(), e) == chosen.end())
        chosen.push_back(e);
    }
    for (size_t s = 0; s < chosen.size(); ++s)
      table.Add(static_cast<uint32_t>(t), static_cast<uint16_t>(s),
                ExpertId(chosen[s]), 1.0f);
  }
  return table;
}

// One layer's exchange, as 7.4 of the cost model has it: posts, the way there,
// the slowest worker, the way back.
struct LayerCost {
  absl::Duration time;
  uint64_t trunk_bytes = 0, operations = 0;
  std::map<WorkerId, uint64_t> worker_bytes;
  size_t shares = 0, experts_read = 0;
};

LayerCost CostOf(const ScaleShape& shape, const routing::RouteTable& table,
                 const dispatch::DispatchPlan& plan, size_t live,
                 const ScaleCosts& costs) {
  LayerCost cost;
  cost.shares = plan.shares.size();
  // Routes are sorted and assigned once each; the live workers are looked at
  // once.
  cost.operations =
      static_cast<uint64_t>(table.size()) + plan.shares.size() + live;
  uint64_t sent = 0, received = 0;
  absl::Duration slowest, wire;
  for (const dispatch::WorkerShare& share : plan.shares) {
    const uint64_t there = dispatch::DispatchFrameBytes(
        static_cast<uint32_t>(share.rows.size()),
        static_cast<uint32_t>(share.routes.size()),
        static_cast<uint32_t>(shape.width), DType::kBF16);
    const uint64_t back = dispatch::AnswerFrameBytes(
        static_cast<uint32_t>(share.routes.size()),
        static_cast<uint32_t>(shape.width), DType::kBF16);
    sent += there;
    received += back;
    cost.worker_bytes[share.worker] = there + back;
    size_t experts = 0;
    for (size_t i = 0; i < share.routes.size(); ++i) {
      experts += i == 0 || table.expert_id[share.routes[i]] !=
                               table.expert_id[share.routes[i - 1]];
    }
    const absl::Duration read = At(
        static_cast<double>(experts) * static_cast<double>(shape.expert_bytes),
        costs.memory_bytes_per_second);
    const absl::Duration multiply = absl::Seconds(
        2.0 * static_cast<double>(share.routes.size()) *
        static_cast<double>(shape.expert_weights) / costs.flops_per_second);
    slowest = std::max(slowest, std::max(read, multiply));
    cost.experts_read = std::max(cost.experts_read, experts);
  }
  const double link = costs.link_bytes_per_second;
  cost.trunk_bytes = sent + received;
  cost.time = costs.trunk_layer +
              costs.per_message * static_cast<double>(2 * plan.shares.size()) +
              2 * costs.latency + At(static_cast<double>(sent), link) +
              At(static_cast<double>(received), link) + slowest;
  return cost;
}

}  // namespace

const std::vector<ScaleShape>& NemotronShapes() {
  // Weights of an expert: two matrices of width x inner. Stored: Nano in bf16,
  // the others at 0.5625 bytes a weight.
  static const std::vector<ScaleShape> shapes = {
      {"nano", 23, 128, 6, 2688, 2 * 2688 * 1856 * 2, 2 * 2688 * 1856},
      {"super", 40, 512, 22, 1024, 2 * 1024 * 2688 * 9 / 16, 2 * 1024 * 2688},
      {"ultra", 48, 512, 22, 2048, 2 * 2048 * 5120 * 9 / 16, 2 * 2048 * 5120}};
  return shapes;
}

absl::StatusOr<ScaleRow> ComputeScale(const ScaleShape& shape, int workers,
                                      int tokens, const ScaleCosts& costs) {
  std::vector<placement::MoeLayerShape> layers;
  for (int l = 0; l < shape.moe_layers; ++l)
    layers.push_back({LayerIndex(static_cast<uint32_t>(l)), shape.experts,
                      shape.expert_bytes});
  std::vector<WorkerId> ids;
  std::vector<placement::WorkerProfile> profiles;
  for (int w = 0; w < workers; ++w) {
    ids.push_back(WorkerId(static_cast<uint32_t>(w)));
    profiles.push_back({.worker = ids.back(),
                        .memory_bytes = 0,
                        .speed = 1,
                        .failure_domain = absl::StrCat(w),
                        .numerics_class = "portable"});
  }
  ScaleRow row;
  row.shape = shape.name;
  row.workers = workers;
  row.tokens = tokens;
  row.replicas = 2;
  TL_ASSIGN_OR_RETURN(
      const placement::PlacementMap map,
      placement::InitialPlacement(PlacementVersion(1), layers, ids, 2));

  RandomStream random(static_cast<uint64_t>(workers));
  dispatch::DispatchPlanner planner;
  dispatch::DispatchPlan plan;
  std::map<WorkerId, uint64_t> worker_bytes;
  for (int l = 0; l < shape.moe_layers; ++l) {
    const routing::RouteTable table = UniformRoutes(shape, tokens, &random);
    TL_RETURN_IF_ERROR(planner.Plan(table, {},
                                    map.layers[static_cast<size_t>(l)],
                                    map.version, ids, &plan));
    const LayerCost cost = CostOf(shape, table, plan, ids.size(), costs);
    row.step += cost.time;
    row.trunk_link_bytes += cost.trunk_bytes;
    row.plan_operations += cost.operations;
    row.workers_used += static_cast<int>(cost.shares);
    row.experts_read += static_cast<double>(cost.experts_read);
    for (const auto& [worker, bytes] : cost.worker_bytes)
      worker_bytes[worker] += bytes;
  }
  row.workers_used /= shape.moe_layers;
  row.experts_read /= shape.moe_layers;
  for (const auto& [worker, bytes] : worker_bytes)
    row.worker_link_bytes = std::max(row.worker_link_bytes, bytes);

  // One worker hands over all that it has.
  profiles.erase(profiles.begin());
  TL_ASSIGN_OR_RETURN(
      placement::RepairResult repair,
      placement::RepairPlacement(map, layers, profiles, {&map}));
  TL_ASSIGN_OR_RETURN(const placement::PlacementDiff diff,
                      placement::DiffPlacements(map, repair.map, layers));
  row.moved_bytes = diff.bytes;
  uint64_t most = 0;
  for (const auto& [worker, bytes] : diff.bytes_by_worker)
    most = std::max(most, bytes);
  row.rebalance =
      At(static_cast<double>(most),
         std::min(costs.disk_bytes_per_second, costs.link_bytes_per_second));
  return row;
}

absl::StatusOr<std::string> ScaleTable(int tokens, const ScaleCosts& costs) {
  std::string table =
      absl::StrFormat("%-6s %7s %6s %8s %8s %10s %12s %13s %11s %11s\n",
                      "shape", "workers", "tokens", "used", "experts", "step",
                      "trunk link", "busiest link", "moved", "rebalance");
  for (const ScaleShape& shape : NemotronShapes()) {
    for (const int workers : {8, 64, 512, 4096}) {
      TL_ASSIGN_OR_RETURN(const ScaleRow row,
                          ComputeScale(shape, workers, tokens, costs));
      absl::StrAppendFormat(
          &table,
          "%-6s %7d %6d %8d %8.1f %8.2fms %9.2f MiB %10.3f MiB %7.2f GiB "
          "%9.2fs\n",
          row.shape, row.workers, row.tokens, row.workers_used,
          row.experts_read, absl::ToDoubleMilliseconds(row.step),
          static_cast<double>(row.trunk_link_bytes) / (1 << 20),
          static_cast<double>(row.worker_link_bytes) / (1 << 20),
          static_cast<double>(row.moved_bytes) / (1 << 30),
          absl::ToDoubleSeconds(row.rebalance));
    }
  }
  return table;
}

}  // namespace trunkline::sim
