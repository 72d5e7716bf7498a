// The exchange over a network against the same experts in one process: every
// bit of every combined row, for any number of workers and replicas, both
// transports, both answer forms and both activation types.

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <set>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "tests/integration/eventually.h"
#include "tests/integration/mini_cluster.h"
#include "tests/integration/random_moe_call.h"
#include "tests/model/checkpoint_builder.h"
#include "trunk_worker/local_experts.h"

namespace trunkline::testing {
namespace {

// One checkpoint of each kind for the whole program.
struct Model {
  std::shared_ptr<const model::Checkpoint> checkpoint;
  std::vector<LayerIndex> layers;
};

const Model& TestModel(DType dtype, bool latent) {
  static model::TempDirectory directory;
  static std::map<std::pair<DType, bool>, Model> models;
  Model& entry = models[{dtype, latent}];
  if (entry.checkpoint != nullptr) return entry;
  model::SmallModel small;
  small.pattern = "EM*E";
  if (latent) small.moe.latent = 24;
  model::SynthesisSpec spec;
  spec.config = model::SmallConfig(small);
  spec.dtype = dtype;
  spec.seed = 11;
  const std::string path = model::BuildCheckpoint(
      spec, directory, absl::StrCat(DTypeName(dtype), latent ? "-latent" : ""));
  auto opened = model::Checkpoint::Open(path);
  EXPECT_TRUE(opened.ok()) << opened.status();
  entry.checkpoint = *std::move(opened);
  entry.layers = entry.checkpoint->config().MoeLayers();
  return entry;
}

class ExactnessTest
    : public ::testing::TestWithParam<std::tuple<std::string, DType, bool>> {
 protected:
  ThreadPool pool_{ThreadPool::Options{}};
  kernels::KernelContext context_{&pool_};
};

TEST_P(ExactnessTest, CombinedRowsAreThoseOfOneProcessBitForBit) {
  const auto& [transport, dtype, latent] = GetParam();
  const Model& model = TestModel(dtype, latent);
  auto local = trunk::LocalExperts::Load(*model.checkpoint, context_);
  ASSERT_TRUE(local.ok()) << local.status();

  std::deque<RandomMoeCall> calls;
  std::vector<std::vector<uint32_t>> expected;
  for (const LayerIndex layer : model.layers) {
    for (const int64_t tokens : {1, 7, 33}) {
      calls.emplace_back(*model.checkpoint, layer, tokens,
                         100 * layer.value + tokens);
      ASSERT_TRUE(RunOnce(**local, StepId(calls.size()), calls.back()).ok());
      expected.push_back(calls.back().Bits());
    }
  }
  for (const int workers : {1, 2, 3, 4}) {
    for (const int64_t replicas : {1, 2}) {
      if (replicas > workers) continue;
      for (const char* answer : {"auto", "gated-f32"}) {
        SCOPED_TRACE(absl::StrCat(workers, " workers, ", replicas,
                                  " replicas, answer ", answer));
        MiniClusterOptions options;
        options.workers = workers;
        options.replicas = replicas;
        options.transport = transport;
        options.answer = answer;
        MiniCluster cluster(model.checkpoint, context_, options);
        const absl::Status ready = cluster.WaitReady();
        ASSERT_TRUE(ready.ok()) << ready;
        for (size_t i = 0; i < calls.size(); ++i) {
          const absl::Status status =
              RunOnce(*cluster.link(), StepId(i), calls[i]);
          ASSERT_TRUE(status.ok()) << status;
          EXPECT_EQ(calls[i].Bits(), expected[i]) << "call " << i;
        }
      }
    }
  }
}

// Every expert on every worker, and costs that send the routes here and there.
TEST_P(ExactnessTest, TheChoiceOfReplicasChangesNoBit) {
  const auto& [transport, dtype, latent] = GetParam();
  const Model& model = TestModel(dtype, latent);
  auto local = trunk::LocalExperts::Load(*model.checkpoint, context_);
  ASSERT_TRUE(local.ok()) << local.status();
  RandomMoeCall call(*model.checkpoint, model.layers[0], 24, 5);
  ASSERT_TRUE(RunOnce(**local, StepId(1000), call).ok());
  const std::vector<uint32_t> expected = call.Bits();

  MiniClusterOptions options;
  options.workers = 3;
  options.replicas = 3;
  options.transport = transport;
  MiniCluster cluster(model.checkpoint, context_, options);
  // With replicas the link is ready before all are connected.
  ASSERT_TRUE(Eventually(std::chrono::seconds(20), [&] {
    cluster.link()->Poll(absl::Milliseconds(5));
    return cluster.link()->stats().connections_up >= 3;
  }));
  RandomStream random(7);
  std::set<std::vector<uint64_t>> spreads;
  for (uint64_t step = 0; step < 12; ++step) {
    std::vector<uint64_t> before, spread;
    for (int w = 0; w < 3; ++w) {
      before.push_back(cluster.counters(w).routes_batched);
      cluster.SetCosts(w, {.read_seconds = random.NextUnit() * 1e-3,
                           .row_seconds = random.NextUnit() * 1e-4});
    }
    cluster.PublishView();
    const absl::Status ready = cluster.WaitReady();
    ASSERT_TRUE(ready.ok()) << ready;
    const absl::Status status = RunOnce(*cluster.link(), StepId(step), call);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(call.Bits(), expected) << "step " << step;
    // The counters are published after the answers are sent.
    const auto routes = [&] {
      uint64_t sum = 0;
      spread.clear();
      for (int w = 0; w < 3; ++w) {
        spread.push_back(cluster.counters(w).routes_batched - before[w]);
        sum += spread.back();
      }
      return sum;
    };
    ASSERT_TRUE(Eventually(std::chrono::seconds(20),
                           [&] { return routes() == call.accepted(); }));
    spreads.insert(spread);
  }
  EXPECT_GE(spreads.size(), 3u) << "the costs moved no route";
}

INSTANTIATE_TEST_SUITE_P(
    Transports, ExactnessTest,
    ::testing::Combine(::testing::Values("inprocess", "ucx"),
                       ::testing::Values(DType::kF32, DType::kBF16),
                       ::testing::Bool()),
    [](const auto& p) {
      return absl::StrCat(std::get<0>(p.param), "_",
                          DTypeName(std::get<1>(p.param)),
                          std::get<2>(p.param) ? "_latent" : "");
    });

class ExpertLinkTest : public ::testing::TestWithParam<std::string> {
 protected:
  MiniClusterOptions Options(int workers, int64_t replicas) const {
    MiniClusterOptions options;
    options.workers = workers;
    options.replicas = replicas;
    options.transport = GetParam();
    return options;
  }
  const Model& model_ = TestModel(DType::kBF16, false);
  ThreadPool pool_{ThreadPool::Options{}};
  kernels::KernelContext context_{&pool_};
};

TEST_P(ExpertLinkTest, BeforeAViewAndAnActivePlacementItSaysWhatIsMissing) {
  MiniCluster cluster(model_.checkpoint, context_, Options(2, 1));
  ASSERT_TRUE(cluster.WaitReady().ok());
  control::ClusterView view = cluster.view();
  view.active = PlacementVersion();
  view.waiting_for = "worker ew-1 to load";
  control::Identity identity;
  identity.worker = cluster.trunk_id();
  identity.cluster_id = cluster.cluster_id();
  cluster.link()->UpdateView(view, identity);
  const absl::Status status = cluster.link()->Ready();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(std::string(status.message()).find("worker ew-1 to load"),
            std::string::npos)
      << status;
  EXPECT_EQ(cluster.link()->BeginStep(StepId(1)).status(), status);
}

TEST_P(ExpertLinkTest, AStepPinsItsVersionUntilItEnds) {
  MiniCluster cluster(model_.checkpoint, context_, Options(3, 1));
  ASSERT_TRUE(cluster.WaitReady().ok());
  trunk::ExpertLink& link = *cluster.link();
  EXPECT_FALSE(link.oldest_in_flight().valid());
  ASSERT_EQ(link.BeginStep(StepId(1)).value(), PlacementVersion(1));
  EXPECT_EQ(link.oldest_in_flight(), PlacementVersion(1));
  cluster.Activate(cluster.Stage(2, 1));
  ASSERT_EQ(link.BeginStep(StepId(2)).value(), PlacementVersion(2));
  EXPECT_EQ(link.oldest_in_flight(), PlacementVersion(1));

  // The older step still runs under its version.
  RandomMoeCall call(*model_.checkpoint, model_.layers[0], 5, 1);
  call.SetStep(StepId(1));
  ASSERT_TRUE(link.Begin(call.call()).ok());
  ASSERT_TRUE(link.Finish(call.call()).ok());
  EXPECT_EQ(link.oldest_in_flight(), PlacementVersion(1));
  link.EndStep(StepId(1));
  EXPECT_EQ(link.oldest_in_flight(), PlacementVersion(2));
  link.EndStep(StepId(2));
  EXPECT_FALSE(link.oldest_in_flight().valid());
}

TEST_P(ExpertLinkTest, CountsWhatWasSelectedAndExecuted) {
  MiniCluster cluster(model_.checkpoint, context_, Options(2, 1));
  ASSERT_TRUE(cluster.WaitReady().ok());
  RandomMoeCall call(*model_.checkpoint, model_.layers[1], 20, 3);
  ASSERT_TRUE(RunOnce(*cluster.link(), StepId(1), call).ok());
  const std::vector<control::ExpertLoadReport> loads =
      cluster.link()->TakeLoads();
  ASSERT_EQ(loads.size(), 1u);
  EXPECT_EQ(loads[0].layer, model_.layers[1]);
  std::vector<uint64_t> selected(call.table().experts);
  std::vector<uint64_t> executed(call.table().experts);
  uint64_t accepted = 0;
  for (int64_t r = 0; r < call.table().size(); ++r) {
    ++selected[call.table().expert_id[r].value];
    if (call.table().fate[r] != routing::RouteFate::kAccepted) continue;
    ++executed[call.table().expert_id[r].value];
    ++accepted;
  }
  EXPECT_EQ(loads[0].selected, selected);
  EXPECT_EQ(loads[0].executed, executed);
  EXPECT_TRUE(cluster.link()->TakeLoads().empty()) << "taken once";

  const trunk::ExchangeStats stats = cluster.link()->stats();
  EXPECT_EQ(stats.routes.routes_done, accepted);
  EXPECT_EQ(stats.routes.routes_sent, accepted);
  EXPECT_EQ(stats.frames_sent, 2u);
  const trunk::LayerTiming& timing = stats.layers.at(model_.layers[1]);
  EXPECT_EQ(timing.calls, 1u);
  EXPECT_GT(timing.compute, absl::ZeroDuration());
  EXPECT_LE(timing.queue + timing.compute + timing.wire, timing.exchange);
}

// A row with no accepted route at all, and a table of such rows.
TEST_P(ExpertLinkTest, NothingToSendCombinesToZeroAtOnce) {
  MiniCluster cluster(model_.checkpoint, context_, Options(2, 1));
  ASSERT_TRUE(cluster.WaitReady().ok());
  RandomMoeCall call(*model_.checkpoint, model_.layers[0], 4, 3);
  for (routing::RouteFate& fate : call.table().fate)
    fate = routing::RouteFate::kDropped;
  ASSERT_TRUE(RunOnce(*cluster.link(), StepId(1), call).ok());
  for (const uint32_t bits : call.Bits()) EXPECT_EQ(bits, 0u);
  EXPECT_EQ(cluster.link()->stats().frames_sent, 0u);
}

INSTANTIATE_TEST_SUITE_P(Transports, ExpertLinkTest,
                         ::testing::Values("inprocess", "ucx"),
                         [](const auto& p) { return p.param; });

}  // namespace
}  // namespace trunkline::testing
