// What the contracts that are checked in production cost, as a share of a
// decode step of the demo model, which fails at 1 %. Both sides are measured on
// the same steps of the same run, so the share is a ratio that a busy machine
// does not move much.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "dispatch/layer_exchange.h"
#include "placement/placement_map.h"
#include "routing/route_validator.h"
#include "tests/dispatch/exchange_driver.h"
#include "tests/golden/checkpoint_fixture.h"
#include "trunk_worker/layer_runner.h"

namespace trunkline {
namespace {

using Clock = std::chrono::steady_clock;

double Seconds(Clock::time_point from) {
  return std::chrono::duration<double>(Clock::now() - from).count();
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The demo with its experts in this process, and `rows` sequences that decode.
struct DecodingModel {
  explicit DecodingModel(int64_t rows)
      : model(testing::LoadedModel::Load(testing::DemoFixture().checkpoint)),
        experts(model->NewLocalExperts()),
        runner(&model->checkpoint().config(), &model->weights(),
               model->activation(), experts.get(), {&model->pool()}, rows) {
    auto pool = trunk::SequencePool::Create(
        trunk::StateLayout::For(model->checkpoint().config(),
                                model->activation()),
        {.sequences_max = rows, .tokens_max = 1024});
    if (!pool.ok()) std::abort();
    states = *std::move(pool);
    for (int64_t i = 0; i < rows; ++i) {
      sequences.push_back(states->Admit(1024));
      tokens.push_back(static_cast<int32_t>(40 + 7 * i));
    }
    runner.set_route_tap([this](LayerIndex layer, routing::RouteTable* table) {
      layers.push_back(layer);
      tables.push_back(*table);
    });
  }
  void Step(uint64_t number) {
    std::vector<trunk::RowRun> runs;
    for (size_t i = 0; i < sequences.size(); ++i)
      runs.push_back(
          {sequences[i].get(), {&tokens[i], 1}, trunk::LogitRows::kLast});
    layers.clear();
    tables.clear();
    if (!runner.RunStep(StepId(number), runs, &logits).ok()) std::abort();
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<int32_t>(
          std::max_element(logits[i].begin(), logits[i].end()) -
          logits[i].begin());
  }

  std::unique_ptr<testing::LoadedModel> model;
  std::unique_ptr<trunk::ExpertExchange> experts;
  trunk::LayerRunner runner;
  std::unique_ptr<trunk::SequencePool> states;
  std::vector<std::unique_ptr<trunk::SequenceState>> sequences;
  std::vector<int32_t> tokens;
  trunk::StepLogits logits;
  std::vector<LayerIndex> layers;
  std::vector<routing::RouteTable> tables;
};

// The layer's exchange with two expert workers, every route answered.
struct AnsweredExchange {
  AnsweredExchange(const routing::RouteTable& table, LayerIndex layer) {
    placement.layer = layer;
    for (uint32_t e = 0; e < table.experts; ++e)
      placement.replicas.push_back({{WorkerId(e % 2), e}});
    const auto sends =
        exchange.Begin(StepId(1), 0, &table, &placement, PlacementVersion(1),
                       {WorkerId(0), WorkerId(1)}, {}, absl::UnixEpoch());
    if (!sends.ok()) std::abort();
    for (uint32_t i = 0; i < sends->size(); ++i) {
      const dispatch::AnswerParts answer = dispatch::MakeAnswer(
          (*sends)[i], table, StepId(1), layer, /*micro_batch=*/0);
      const auto used =
          exchange.OnAnswer((*sends)[i].share->worker, answer.View(), i);
      if (!used.ok() || !*used) std::abort();
    }
  }
  placement::LayerPlacement placement;
  dispatch::LayerExchange exchange;
};

void BM_ProductionChecksOfADecodeStep(benchmark::State& state) {
  DecodingModel demo(state.range(0));
  const auto& layers = demo.model->checkpoint().config().layers;
  std::vector<double> steps, checks;
  uint64_t number = 0;
  for (auto _ : state) {
    const auto begin = Clock::now();
    demo.Step(++number);
    steps.push_back(Seconds(begin));
    state.SetIterationTime(steps.back());
    double checking = 0;
    for (size_t i = 0; i < demo.tables.size(); ++i) {
      const AnsweredExchange answered(demo.tables[i], demo.layers[i]);
      const routing::RouterPolicy policy =
          trunk::RouterPolicyOf(layers[demo.layers[i].value].moe);
      const auto from = Clock::now();
      const absl::Status chosen =
          routing::CheckStepInvariants(policy, demo.tables[i]);
      const absl::Status completed = answered.exchange.CheckConservation();
      checking += Seconds(from);
      if (!chosen.ok() || !completed.ok()) {
        state.SkipWithError("a contract of the demo is broken");
        return;
      }
    }
    checks.push_back(checking);
  }
  const double step = Median(steps), check = Median(checks);
  state.counters["step_us"] = step * 1e6;
  state.counters["checks_us"] = check * 1e6;
  state.counters["checks_percent"] = 100.0 * check / step;
  if (check >= 0.01 * step)
    state.SkipWithError("production checks cost 1 % of a decode step or more");
}
BENCHMARK(BM_ProductionChecksOfADecodeStep)
    ->ArgName("rows")
    ->Arg(1)
    ->Arg(8)
    ->Arg(64)
    ->UseManualTime()
    ->Iterations(300)
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace trunkline

BENCHMARK_MAIN();
