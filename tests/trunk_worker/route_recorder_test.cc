#include "trunk_worker/route_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "routing/replay.h"
#include "routing/route_validator.h"
#include "trunk_worker/step_plan.h"

namespace trunkline::trunk {
namespace {

// A trunk with one or two moe layers of 4 experts, top 2, without a model: the
// test plays the engine.
class RouteRecorderTest : public ::testing::Test {
 protected:
  RouteRecorderTest() : recorder_([this] { return counters_; }) {
    header_.layers.resize(1);
    RecordedLayer& layer = header_.layers[0];
    layer.layer = LayerIndex(1);
    layer.experts = 4;
    layer.top_k = 2;
    layer.width = 8;
    layer.policy = routing::NemotronHPolicy(4, 2, 1, 1, true, 1.0);
    layer.policy.bias = false;
    counters_ = {{LayerIndex(1), 1000, 1000}, {LayerIndex(3), 50, 50}};
  }

  StepPlan Plan(uint64_t step, int64_t rows) {
    StepPlan plan;
    plan.step = StepId(step);
    plan.rows = rows;
    tokens_.assign(static_cast<size_t>(rows), 5);
    StepRun run;
    run.request = RequestId(70 + step);
    run.rows.tokens = tokens_;
    plan.runs.push_back(run);
    return plan;
  }

  // One layer of a step, as LayerRunner shows it.
  void ShowLayer(LayerObserver* observer, uint64_t step, uint32_t layer,
                 int64_t rows, bool completed = true) {
    const uint64_t routes = static_cast<uint64_t>(rows) * 2;
    for (LayerRouteCounts& c : counters_) {
      if (c.layer.value != layer) continue;
      c.selected += routes;
      if (completed) c.executed += routes;
    }
    if (observer == nullptr || !observer->Wants(LayerIndex(layer))) return;
    scores_.clear();
    for (int64_t i = 0; i < rows * 4; ++i)
      scores_.push_back(0.125f +
                        0.0625f * static_cast<float>((i * 7 + layer) % 11));
    routing::RouterPolicy policy;
    policy.experts = 4;
    policy.top_k = 2;
    ASSERT_TRUE(routing::SelectRoutes(policy, scores_, rows, {}, &table_).ok());
    ObservedLayer seen;
    seen.step = StepId(step);
    seen.layer = LayerIndex(layer);
    seen.routes = &table_;
    seen.scores = scores_;
    seen.completed = completed;
    ASSERT_TRUE(observer->OnLayer(seen).ok());
  }
  void RunStep(uint64_t step, int64_t rows, bool completed = true) {
    const StepPlan plan = Plan(step, rows);
    LayerObserver* observer = recorder_.BeginStep(plan, PlacementVersion(2));
    ShowLayer(observer, step, 1, rows, completed);
    if (completed) ShowLayer(observer, step, 3, rows);
    recorder_.EndStep();
  }
  std::shared_ptr<Recording> Start(int64_t buffer_bytes = 1 << 20) {
    auto recording = recorder_.Start({{LayerIndex(1)}, buffer_bytes});
    EXPECT_TRUE(recording.ok()) << recording.status();
    return *recording;
  }
  static std::vector<CapturedLayer> TakeAll(Recording& recording) {
    std::vector<CapturedLayer> all, some;
    while (recording.Take(Clock::Monotonic().Now(), &some) && !some.empty())
      for (CapturedLayer& layer : some) all.push_back(std::move(layer));
    return all;
  }

  std::vector<LayerRouteCounts> counters_;
  RouteRecorder recorder_;
  RecordingHeader header_;
  std::vector<int32_t> tokens_;
  std::vector<float> scores_;
  routing::RouteTable table_;
};

TEST_F(RouteRecorderTest, NobodyRecordsNobodyIsAsked) {
  const StepPlan plan = Plan(1, 2);
  EXPECT_EQ(recorder_.BeginStep(plan, PlacementVersion(1)), nullptr);
  recorder_.EndStep();
}

TEST_F(RouteRecorderTest, SeesTheChosenLayersOfWholeStepsAndNothingElse) {
  RunStep(1, 3);
  const auto recording = Start();
  RunStep(2, 3);
  RunStep(3, 5);
  ASSERT_TRUE(recorder_.Stop(recording->id(), RecordingEnd::kTimeOver));
  RunStep(4, 2);
  const std::vector<CapturedLayer> layers = TakeAll(*recording);
  ASSERT_EQ(layers.size(), 2u);
  EXPECT_EQ(layers[0].step, StepId(2));
  EXPECT_EQ(layers[0].layer, LayerIndex(1));
  EXPECT_EQ(layers[1].routes.rows, 5);
  EXPECT_THAT(layers[1].request_of_row, ::testing::Each(73u));
  const RecordingTrailer trailer = recording->Trailer();
  EXPECT_EQ(trailer.end, RecordingEnd::kTimeOver);
  ASSERT_EQ(trailer.layers.size(), 1u);
  EXPECT_EQ(trailer.layers[0].records, 2u);
  EXPECT_EQ(trailer.layers[0].routes, (RouteTotals{16, 16}));
  EXPECT_EQ(trailer.layers[0].at_begin, (RouteTotals{1006, 1006}));
  EXPECT_EQ(trailer.layers[0].at_end, (RouteTotals{1022, 1022}));
}

TEST_F(RouteRecorderTest, ACaptureBecomesARecordThatReplaysAndIsValid) {
  const auto recording = Start();
  RunStep(1, 6);
  std::vector<CapturedLayer> layers = TakeAll(*recording);
  ASSERT_EQ(layers.size(), 1u);
  const auto routes = RecordOf(std::move(layers[0]), header_.layers[0]);
  ASSERT_TRUE(routes.ok()) << routes.status();
  EXPECT_EQ(routes->record.placement_version, PlacementVersion(2));
  EXPECT_TRUE(routing::ProveEqual(routes->record).ok());
  const absl::Status valid = routing::ValidateLayer(routes->record);
  EXPECT_TRUE(valid.ok()) << valid;
  recorder_.Stop(recording->id(), RecordingEnd::kStopped);
}

// Started and stopped while a step runs: it begins and ends at boundaries.
TEST_F(RouteRecorderTest, BeginsAndEndsBetweenSteps) {
  const StepPlan plan = Plan(1, 2);
  LayerObserver* observer = recorder_.BeginStep(plan, PlacementVersion(1));
  EXPECT_EQ(observer, nullptr);
  ShowLayer(nullptr, 1, 1, 2);
  const auto recording = Start();
  recorder_.EndStep();
  observer = recorder_.BeginStep(plan, PlacementVersion(1));
  ASSERT_NE(observer, nullptr);
  EXPECT_TRUE(recorder_.Stop(recording->id(), RecordingEnd::kStopped));
  ShowLayer(observer, 2, 1, 4);
  std::vector<CapturedLayer> layers;
  ASSERT_TRUE(recording->Take(Clock::Monotonic().Now(), &layers));
  EXPECT_EQ(layers.size(), 1u);
  recorder_.EndStep();
  EXPECT_FALSE(recording->Take(Clock::Monotonic().Now(), &layers));
  const RecordingTrailer trailer = recording->Trailer();
  EXPECT_EQ(trailer.layers[0].routes, (RouteTotals{8, 8}));
  EXPECT_EQ(trailer.layers[0].at_begin, (RouteTotals{1004, 1004}));
  EXPECT_EQ(trailer.layers[0].at_end, (RouteTotals{1012, 1012}));
}

TEST_F(RouteRecorderTest, WhatFindsNoRoomIsCountedAndNothingIsLostSilently) {
  const auto recording = Start(1200);
  for (uint64_t step = 1; step <= 20; ++step) RunStep(step, 4);
  recorder_.Stop(recording->id(), RecordingEnd::kStopped);
  const std::vector<CapturedLayer> layers = TakeAll(*recording);
  const RecordedLayerTotals totals = recording->Trailer().layers[0];
  EXPECT_EQ(totals.records, layers.size());
  EXPECT_GT(totals.records, 0u);
  EXPECT_EQ(totals.records + totals.records_left_out, 20u);
  EXPECT_EQ(totals.routes, (RouteTotals{160, 160}));
  EXPECT_EQ(totals.left_out.selected, totals.records_left_out * 8);
  EXPECT_EQ(totals.at_end.selected - totals.at_begin.selected, 160u);
}

TEST_F(RouteRecorderTest, AStepThatFailsSelectsAndExecutesNothing) {
  const auto recording = Start();
  RunStep(1, 3, false);
  recorder_.Stop(recording->id(), RecordingEnd::kStopped);
  std::vector<CapturedLayer> layers = TakeAll(*recording);
  ASSERT_EQ(layers.size(), 1u);
  EXPECT_FALSE(layers[0].completed);
  const RecordedLayerTotals totals = recording->Trailer().layers[0];
  EXPECT_EQ(totals.routes, (RouteTotals{6, 0}));
  EXPECT_EQ(totals.at_end.executed, totals.at_begin.executed);
  const auto routes = RecordOf(std::move(layers[0]), header_.layers[0]);
  ASSERT_TRUE(routes.ok());
  EXPECT_EQ(CountRoutes(*routes), (RouteTotals{6, 0}));
}

TEST_F(RouteRecorderTest, OneRecordingAtATimeAndNoneAfterTheEnd) {
  const auto first = Start();
  EXPECT_EQ(recorder_.Start({{LayerIndex(1)}, 1000}).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(recorder_.Stop(first->id() + 1, RecordingEnd::kStopped));
  EXPECT_TRUE(recorder_.Stop(first->id(), RecordingEnd::kStopped));
  EXPECT_FALSE(recorder_.Stop(first->id(), RecordingEnd::kStopped));
  const auto second = Start();
  recorder_.StopForGood();
  EXPECT_EQ(second->Trailer().end, RecordingEnd::kServerStopped);
  EXPECT_EQ(recorder_.Start({{LayerIndex(1)}, 1000}).status().code(),
            absl::StatusCode::kUnavailable);
}

// Steps on one thread, recordings that come and go on another: every one of
// them adds up.
TEST_F(RouteRecorderTest, EveryRecordingAddsUpWhileStepsRun) {
  std::atomic<bool> stop{false};
  std::thread engine([&] {
    for (uint64_t step = 1; !stop; ++step) RunStep(step, 2);
  });
  for (int i = 0; i < 200; ++i) {
    const auto recording = recorder_.Start({{LayerIndex(1)}, 4000});
    ASSERT_TRUE(recording.ok()) << recording.status();
    std::vector<CapturedLayer> some;
    ASSERT_TRUE(
        (*recording)->Take(Clock::Monotonic().Now() + absl::Seconds(5), &some));
    uint64_t records = some.size();
    recorder_.Stop((*recording)->id(), RecordingEnd::kStopped);
    while (
        (*recording)->Take(Clock::Monotonic().Now() + absl::Seconds(5), &some))
      records += some.size();
    const RecordedLayerTotals totals = (*recording)->Trailer().layers[0];
    EXPECT_EQ(totals.records, records);
    EXPECT_EQ(totals.at_end.selected - totals.at_begin.selected,
              totals.routes.selected);
    EXPECT_EQ((totals.records + totals.records_left_out) * 4,
              totals.routes.selected);
  }
  stop = true;
  engine.join();
}

}  // namespace
}  // namespace trunkline::trunk
