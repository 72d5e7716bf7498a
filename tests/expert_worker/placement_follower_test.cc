// From views to what is loaded, served and reported.

#include "expert_worker/placement_follower.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>

#include "tests/integration/eventually.h"
#include "tests/model/checkpoint_builder.h"
#include "transport/transport_factory.h"

namespace trunkline::expert {
namespace {

using control::PlacementState;
using control::ShardState;

constexpr uint64_t kCluster = 5;
const WorkerId kMe(3);
const WorkerId kOther(4);

class PlacementFollowerTest : public ::testing::Test {
 protected:
  PlacementFollowerTest() {
    model::SmallModel small;
    small.pattern = "EM";
    small.moe.experts = 4;
    small.moe.top_k = 2;
    model::SynthesisSpec spec;
    spec.config = model::SmallConfig(small);
    checkpoint_ =
        model::Checkpoint::Open(model::BuildCheckpoint(spec, directory_))
            .value();
    Start(0);
    view_.cluster_id = kCluster;
    for (const WorkerId id : {kMe, kOther}) {
      control::WorkerView worker;
      worker.id = id;
      worker.alive = true;
      view_.workers.push_back(worker);
    }
  }

  void Start(int64_t memory_limit) {
    follower_ = nullptr;
    store_ = nullptr;
    engine_ = nullptr;
    ExpertStore::Options store;
    store.memory_limit_bytes = memory_limit;
    store.release_patience = absl::ZeroDuration();
    ExpertEngine::Options engine;
    engine.layers = {{LayerIndex(0), 4, 64}};
    engine.activation = kernels::Activation::kBf16;
    engine_ = std::make_unique<ExpertEngine>(
        engine, transport::MakeTransport("inprocess", {}).value(), &metrics_);
    store_ = std::make_unique<ExpertStore>(checkpoint_, store);
    follower_ = std::make_unique<PlacementFollower>(
        store_.get(), engine_.get(), [this] {
          {
            std::lock_guard<std::mutex> lock(mutex_);
            ++reports_;
          }
          reported_.notify_all();
        });
  }
  ~PlacementFollowerTest() override {
    store_ = nullptr;  // its thread calls the follower
    engine_ = nullptr;
  }

  void RegisterIn(uint64_t cluster) {
    control::Identity identity;
    identity.worker = kMe;
    identity.cluster_id = cluster;
    follower_->OnRegistered(identity);
  }
  // Experts begin..end-1 here, the others elsewhere.
  void Place(uint64_t version, uint32_t begin, uint32_t end,
             PlacementState state) {
    control::PlacementView placement;
    placement.map.version = PlacementVersion(version);
    placement.state = state;
    placement::LayerPlacement layer;
    layer.layer = LayerIndex(0);
    for (uint32_t e = 0; e < 4; ++e)
      layer.replicas.push_back({{e >= begin && e < end ? kMe : kOther, e}});
    placement.map.layers.push_back(layer);
    view_.placements.push_back(placement);
  }
  // The loader holds a version for a moment after it has reported it, so memory
  // is free soon after a retirement, not at once.
  bool AwaitHeld(int64_t bytes) {
    return Eventually(std::chrono::seconds(20),
                      [&] { return store_->held_bytes() == bytes; });
  }
  // Waits until a report says this of the version; false when it never does.
  bool AwaitReport(uint64_t version, ShardState state) {
    const auto says = [&] {
      for (const control::VersionReport& report : follower_->Reports()) {
        if (report.version == PlacementVersion(version) &&
            report.state == state)
          return true;
      }
      return false;
    };
    for (uint64_t seen = 0;;) {
      if (says()) return true;
      std::unique_lock<std::mutex> lock(mutex_);
      if (!reported_.wait_for(lock, std::chrono::seconds(20),
                              [&] { return reports_ != seen; }))
        return false;
      seen = reports_;
    }
  }

  model::TempDirectory directory_;
  std::shared_ptr<const model::Checkpoint> checkpoint_;
  prometheus::Registry registry_;
  ExpertMetrics metrics_{registry_};
  std::unique_ptr<PlacementFollower> follower_;
  std::unique_ptr<ExpertEngine> engine_;
  std::unique_ptr<ExpertStore> store_;
  control::ClusterView view_;

  std::mutex mutex_;
  std::condition_variable reported_;
  uint64_t reports_ = 0;
};

TEST_F(PlacementFollowerTest, LoadsEveryVersionThatMayBeUsedAndNoOther) {
  RegisterIn(kCluster);
  Place(1, 0, 1, PlacementState::kDraining);
  Place(2, 0, 2, PlacementState::kActive);
  Place(3, 1, 3, PlacementState::kStaging);
  Place(4, 0, 4, PlacementState::kProposed);
  Place(5, 0, 4, PlacementState::kAbandoned);
  Place(6, 0, 0, PlacementState::kActive);  // nothing of it here
  follower_->OnView(view_);
  for (const uint64_t version : {1, 2, 3})
    ASSERT_TRUE(AwaitReport(version, ShardState::kReady)) << version;
  const std::vector<control::VersionReport> reports = follower_->Reports();
  ASSERT_EQ(reports.size(), 3u);
  for (const control::VersionReport& report : reports) {
    EXPECT_EQ(report.bytes_loaded, report.bytes_total);
    EXPECT_GT(report.bytes_loaded, 0u);
  }
  const int64_t expert_bytes =
      store_->PackedBytes({LayerIndex(0), ExpertId(0)}).value();
  EXPECT_TRUE(AwaitHeld(3 * expert_bytes)) << "experts 0, 1, 2";

  // The view moves on.
  view_.placements.erase(view_.placements.begin(),
                         view_.placements.begin() + 2);
  view_.placements[0].state = PlacementState::kActive;
  follower_->OnView(view_);
  ASSERT_TRUE(engine_->WaitIdle(absl::Seconds(20)));
  EXPECT_EQ(follower_->Reports().size(), 1u);
  EXPECT_TRUE(AwaitHeld(2 * expert_bytes)) << "experts 1, 2";
}

TEST_F(PlacementFollowerTest, AViewThatOvertakesItsRegistrationIsNotLost) {
  Place(1, 0, 2, PlacementState::kActive);
  follower_->OnView(view_);
  EXPECT_TRUE(follower_->Reports().empty()) << "of whom would they be?";
  RegisterIn(kCluster);
  EXPECT_TRUE(AwaitReport(1, ShardState::kReady));
}

TEST_F(PlacementFollowerTest, ViewsOfAnotherClusterAreNotFollowed) {
  RegisterIn(kCluster + 1);
  Place(1, 0, 2, PlacementState::kActive);
  follower_->OnView(view_);
  EXPECT_TRUE(follower_->Reports().empty());
}

// Version numbers of one cluster mean nothing in another.
TEST_F(PlacementFollowerTest, JoiningAnotherClusterDropsTheOldOnesVersions) {
  RegisterIn(kCluster);
  Place(1, 0, 2, PlacementState::kActive);
  follower_->OnView(view_);
  ASSERT_TRUE(AwaitReport(1, ShardState::kReady));
  RegisterIn(kCluster + 1);
  EXPECT_TRUE(follower_->Reports().empty());
  ASSERT_TRUE(engine_->WaitIdle(absl::Seconds(20)));
  EXPECT_TRUE(AwaitHeld(0));

  view_.cluster_id = kCluster + 1;
  view_.placements.clear();
  Place(1, 2, 3, PlacementState::kActive);
  follower_->OnView(view_);
  ASSERT_TRUE(AwaitReport(1, ShardState::kReady));
  EXPECT_TRUE(
      AwaitHeld(store_->PackedBytes({LayerIndex(0), ExpertId(2)}).value()));
}

TEST_F(PlacementFollowerTest, AVersionThatDoesNotFitIsReportedWithTheReason) {
  const int64_t expert_bytes =
      store_->PackedBytes({LayerIndex(0), ExpertId(0)}).value();
  Start(2 * expert_bytes);
  RegisterIn(kCluster);
  Place(1, 0, 2, PlacementState::kActive);
  Place(2, 2, 3, PlacementState::kStaging);
  follower_->OnView(view_);
  ASSERT_TRUE(AwaitReport(1, ShardState::kReady));
  ASSERT_TRUE(AwaitReport(2, ShardState::kFailed));
  for (const control::VersionReport& report : follower_->Reports()) {
    if (report.version != PlacementVersion(2)) continue;
    EXPECT_NE(report.error.find(std::to_string(2 * expert_bytes)),
              std::string::npos)
        << report.error;
  }
}

TEST_F(PlacementFollowerTest, WaitingToBeDrainedEndsWhenNobodyCouldTakeOver) {
  RegisterIn(kCluster);
  Place(1, 0, 2, PlacementState::kActive);
  using Handover = PlacementFollower::Handover;
  view_.workers[1].alive = false;
  follower_->OnView(view_);
  EXPECT_EQ(follower_->WaitDrained(absl::Seconds(20)), Handover::kNobodyLeft);
  view_.workers[1].alive = true;
  follower_->OnView(view_);
  EXPECT_EQ(follower_->WaitDrained(absl::Milliseconds(1)), Handover::kTimedOut);
  // The whole cluster stops: the other one takes nothing either.
  view_.workers[1].draining = true;
  follower_->OnView(view_);
  EXPECT_EQ(follower_->WaitDrained(absl::InfiniteDuration()),
            Handover::kNobodyLeft);
  view_.workers[1].draining = false;
  view_.workers[0].drained = true;
  follower_->OnView(view_);
  EXPECT_EQ(follower_->WaitDrained(absl::InfiniteDuration()),
            Handover::kDrained);
}

// Loads nothing; every load fails at once when told to.
class FailingShards final : public ShardSource {
 public:
  void Stage(PlacementVersion version, std::vector<ExpertKey> /*experts*/,
             OnProgress on_progress) override {
    ++stages[version];
    states_[version].version = version;
    states_[version].state = StageState::kLoading;
    on_progress_[version] = std::move(on_progress);
  }
  void Retire(PlacementVersion version) override { states_.erase(version); }
  std::vector<StageProgress> Versions() const override {
    std::vector<StageProgress> versions;
    for (const auto& [unused, progress] : states_) versions.push_back(progress);
    return versions;
  }
  void Fail(PlacementVersion version) {
    StageProgress& progress = states_[version];
    progress.state = StageState::kFailed;
    progress.status = absl::ResourceExhaustedError("no room");
    on_progress_[version](progress);
  }

  std::map<PlacementVersion, int> stages;

 private:
  std::map<PlacementVersion, StageProgress> states_;
  std::map<PlacementVersion, OnProgress> on_progress_;
};

class IdleServer final : public VersionServer {
 public:
  void SetIdentity(uint64_t, WorkerId) override {}
  void Serve(PlacementVersion, std::shared_ptr<const Shard>,
             std::function<void()>) override {}
  void Retire(PlacementVersion) override {}
};

// A disk or a neighbour in memory that was in the way for a moment must not
// keep an expert away until somebody restarts the process.
TEST(PlacementFollowerRetry, OnlyWhatIsNeededIsTriedAgainAndNotAtOnce) {
  FailingShards shards;
  IdleServer server;
  ManualClock clock;
  PlacementFollower follower(
      &shards, &server, [] {}, absl::ZeroDuration(), &clock);
  control::Identity identity;
  identity.worker = kMe;
  identity.cluster_id = kCluster;
  follower.OnRegistered(identity);
  control::ClusterView view;
  view.cluster_id = kCluster;
  const std::vector<PlacementState> states = {PlacementState::kDraining,
                                              PlacementState::kActive,
                                              PlacementState::kStaging};
  for (size_t i = 0; i < states.size(); ++i) {
    control::PlacementView placement;
    placement.map.version = PlacementVersion(i + 1);
    placement.state = states[i];
    placement.map.layers.push_back({LayerIndex(0), {{{kMe, 0}}}});
    view.placements.push_back(placement);
  }
  follower.OnView(view);
  for (uint64_t v = 1; v <= 3; ++v) shards.Fail(PlacementVersion(v));
  for (const control::VersionReport& report : follower.Reports())
    EXPECT_EQ(report.state, ShardState::kFailed);
  EXPECT_EQ(shards.stages[PlacementVersion(2)], 1) << "not at once";

  clock.Advance(absl::Seconds(30));
  follower.Reports();
  EXPECT_EQ(shards.stages[PlacementVersion(1)], 2);
  EXPECT_EQ(shards.stages[PlacementVersion(2)], 2);
  EXPECT_EQ(shards.stages[PlacementVersion(3)], 1)
      << "a change is the coordinator's to give up";
  shards.Fail(PlacementVersion(2));
  clock.Advance(absl::Seconds(30));
  follower.Reports();
  EXPECT_EQ(shards.stages[PlacementVersion(2)], 3) << "as often as it takes";
}

}  // namespace
}  // namespace trunkline::expert
