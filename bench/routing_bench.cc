// Routing and dispatch of one layer: what a step pays, and what a full
// validation costs.

#include <benchmark/benchmark.h>

#include <vector>

#include "common/aligned_buffer.h"
#include "common/random.h"
#include "dispatch/combine_plan.h"
#include "dispatch/dispatch_plan.h"
#include "dispatch/expert_frame.h"
#include "routing/layer_record.h"
#include "routing/representation.h"
#include "routing/route_validator.h"
#include "routing/router_policy.h"

namespace trunkline {
namespace {

struct Layer {
  routing::RouterPolicy policy;
  int64_t rows = 0;
  std::vector<float> scores;
  std::vector<float> bias;
};

Layer MakeLayer(int64_t experts, int64_t top_k, int64_t rows) {
  Layer layer;
  layer.policy.experts = experts;
  layer.policy.top_k = top_k;
  layer.policy.scale = 2.5f;
  layer.rows = rows;
  RandomStream random(1);
  layer.scores.resize(static_cast<size_t>(rows * experts));
  for (float& s : layer.scores) s = static_cast<float>(random.NextUnit());
  layer.bias.resize(static_cast<size_t>(experts));
  for (float& b : layer.bias) {
    b = static_cast<float>(random.NextUnit() * 0.1);
  }
  return layer;
}

routing::RouteTable Route(const Layer& layer) {
  routing::RouteTable table;
  const absl::Status status = routing::SelectRoutes(
      layer.policy, layer.scores, layer.rows, layer.bias, &table);
  if (!status.ok()) std::abort();
  return table;
}

void SetRoutes(benchmark::State& state, int64_t routes) {
  state.SetItemsProcessed(state.iterations() * routes);
}

void BM_SelectRoutes(benchmark::State& state) {
  const Layer layer = MakeLayer(state.range(0), state.range(1), state.range(2));
  routing::RouteTable table;
  for (auto _ : state) {
    benchmark::DoNotOptimize(routing::SelectRoutes(
        layer.policy, layer.scores, layer.rows, layer.bias, &table));
  }
  SetRoutes(state, table.size());
}
BENCHMARK(BM_SelectRoutes)
    ->ArgNames({"experts", "top_k", "rows"})
    ->Args({128, 6, 1})
    ->Args({128, 6, 512})
    ->Args({512, 22, 1})
    ->Args({512, 22, 512});

void BM_CheckStepInvariants(benchmark::State& state) {
  const Layer layer = MakeLayer(state.range(0), state.range(1), state.range(2));
  const routing::RouteTable table = Route(layer);
  for (auto _ : state) {
    benchmark::DoNotOptimize(routing::CheckStepInvariants(layer.policy, table));
  }
  SetRoutes(state, table.size());
}
BENCHMARK(BM_CheckStepInvariants)
    ->ArgNames({"experts", "top_k", "rows"})
    ->Args({128, 6, 8})
    ->Args({512, 22, 8})
    ->Args({512, 22, 512});

void BM_PlanDispatch(benchmark::State& state) {
  const Layer layer = MakeLayer(state.range(0), state.range(1), state.range(2));
  const auto workers = static_cast<uint32_t>(state.range(3));
  const auto copies = static_cast<uint32_t>(state.range(4));
  const routing::RouteTable table = Route(layer);
  placement::LayerPlacement placement;
  placement.layer = LayerIndex(0);
  std::vector<WorkerId> live;
  for (uint32_t w = 0; w < workers; ++w) live.push_back(WorkerId(w));
  for (uint32_t e = 0; e < layer.policy.experts; ++e) {
    std::vector<placement::Replica> replicas;
    for (uint32_t w = 0; w < workers; ++w) {
      if ((w + workers - e % workers) % workers < copies) {
        replicas.push_back({WorkerId(w), e});
      }
    }
    placement.replicas.push_back(replicas);
  }
  dispatch::DispatchPlanner planner;
  dispatch::DispatchPlan plan;
  dispatch::CombinePlan combine;
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        planner.Plan(table, {}, placement, PlacementVersion(1), live, &plan));
    dispatch::PlanCombine(table, &combine);
  }
  SetRoutes(state, table.size());
}
BENCHMARK(BM_PlanDispatch)
    ->ArgNames({"experts", "top_k", "rows", "workers", "copies"})
    ->Args({128, 6, 1, 4, 1})
    ->Args({128, 6, 64, 4, 1})
    ->Args({128, 6, 64, 4, 2})
    ->Args({512, 22, 64, 8, 2})
    ->Args({512, 22, 512, 8, 2});

// A frame of a decode step with Nano's row width, sealed and checked again.
void BM_FrameRoundTrip(benchmark::State& state) {
  const auto rows = static_cast<uint32_t>(state.range(0));
  dispatch::FrameHeader header;
  header.row_dtype = DType::kBF16;
  header.row_count = header.route_count = rows;
  header.row_width = 2688;
  const size_t bytes =
      dispatch::DispatchFrameBytes(rows, rows, 2688, DType::kBF16);
  AlignedBuffer buffer(bytes);
  const std::span<std::byte> frame(buffer.data(), bytes);
  for (auto _ : state) {
    dispatch::DispatchFrameWriter w =
        dispatch::BeginDispatchFrame(header, frame);
    for (uint32_t i = 0; i < rows; ++i) {
      w.token_id[i] = w.expert_id[i] = w.row_index[i] = i;
      w.slot[i] = 0;
      w.gate[i] = 0.5f;
    }
    dispatch::SealFrame(frame);
    benchmark::DoNotOptimize(dispatch::DecodeDispatch(frame));
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(bytes));
}
BENCHMARK(BM_FrameRoundTrip)->ArgName("rows")->Arg(1)->Arg(64)->Arg(1024);

// A million routes, packed.
void BM_PackMillionRoutes(benchmark::State& state) {
  const Layer layer = MakeLayer(128, 8, 125000);
  const routing::RouteTable table = Route(layer);
  routing::RowLayout layout;
  for (auto _ : state) {
    benchmark::DoNotOptimize(routing::LayOutRows(table, {}, &layout));
  }
  SetRoutes(state, table.size());
}
BENCHMARK(BM_PackMillionRoutes)->Unit(benchmark::kMillisecond);

// A million routes, every contract of the table, selection computed again.
void BM_ValidateMillionRoutes(benchmark::State& state) {
  const Layer layer = MakeLayer(128, 8, 125000);
  routing::LayerRecord record;
  record.step = StepId(1);
  record.layer = LayerIndex(0);
  record.policy = routing::RecordOf(layer.policy, true);
  record.values = layer.scores;
  record.bias = layer.bias;
  if (!routing::FillRecord(layer.rows, &record).ok()) std::abort();
  for (auto _ : state) {
    const absl::Status status = routing::ValidateLayer(record);
    if (!status.ok())
      state.SkipWithError(std::string(status.message()).c_str());
  }
  SetRoutes(state, record.table.size());
}
BENCHMARK(BM_ValidateMillionRoutes)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace trunkline

BENCHMARK_MAIN();
