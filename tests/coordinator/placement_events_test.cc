// Operators, lost workers, drains and restarts: what happens to placements
// around a change.

#include <gmock/gmock.h>

#include "tests/coordinator/placement_life.h"

namespace trunkline::coordinator {
namespace {

using placement::VersionState;
using testing::HasSubstr;

TEST_F(PlacementLife, RollbackIsANewVersionWithTheOldMap) {
  StartTwo();
  const placement::PlacementMap first = cluster.View().placements[0].map;
  ASSERT_EQ(cluster.Do(RollbackEvent{}).status.code(),
            absl::StatusCode::kNotFound);
  ASSERT_TRUE(ApplyRotated().status.ok());
  cluster.Settle(all);
  ASSERT_EQ(cluster.View().active, PlacementVersion(2));
  const Reply reply = cluster.Do(RollbackEvent{});
  ASSERT_TRUE(reply.status.ok()) << reply.status;
  cluster.Settle(all);
  EXPECT_EQ(cluster.View().active, PlacementVersion(3));
  EXPECT_EQ(cluster.View().placements.back().map.layers[0].replicas,
            first.layers[0].replicas);
  EXPECT_EQ(
      cluster.Do(RollbackEvent{.version = PlacementVersion(44)}).status.code(),
      absl::StatusCode::kNotFound);
}

TEST_F(PlacementLife, AnOperatorMayGiveUpAChangeButNotTheActiveVersion) {
  StartTwo();
  ASSERT_TRUE(ApplyRotated().status.ok());
  const auto abandon = [&](uint64_t version) {
    return cluster
        .Do(AbandonEvent{.version = PlacementVersion(version),
                         .reason = "changed my mind"})
        .status.code();
  };
  EXPECT_EQ(abandon(1), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(abandon(9), absl::StatusCode::kNotFound);
  EXPECT_EQ(abandon(2), absl::StatusCode::kOk);
  EXPECT_EQ(StateOf(cluster, 2), VersionState::kAbandoned);
  EXPECT_EQ(cluster.View().active, PlacementVersion(1));
}

TEST_F(PlacementLife, ALostSoleCopyIsPlacedOnASurvivor) {
  StartTwo();
  cluster.Wait(absl::Milliseconds(1500));
  for (int i = 0; i < 10; ++i) {
    cluster.Settle({"t", "a"}, 1);
    cluster.Wait(absl::Seconds(1));
  }
  const control::ClusterView view = cluster.View();
  EXPECT_EQ(view.active, PlacementVersion(2));
  EXPECT_EQ(view.waiting_for, "");
  EXPECT_EQ(view.placements.back().map.Workers(),
            std::vector<WorkerId>{cluster.Id("a")});
}

TEST_F(PlacementLife, WithoutRoomItNamesTheExpertAndWaits) {
  DrivenCluster small(TestOptions(2));
  for (const char* name : {"a", "b"}) {
    control::Registration registration = TestRegistration(name, kExpertRole);
    registration.memory_bytes = 900;
    ASSERT_TRUE(small.Join(registration).ok());
  }
  small.Settle({"a", "b"});
  for (int i = 0; i < 12; ++i) {
    small.Settle({"a"}, 1);
    small.Wait(absl::Seconds(1));
  }
  EXPECT_EQ(small.View().active, PlacementVersion(1));
  EXPECT_THAT(small.View().waiting_for, HasSubstr("expert 4: worker 'b'"));
  EXPECT_THAT(small.View().waiting_for, HasSubstr("room"));
  // A pinned placement is left alone, also when somebody with room comes.
  ASSERT_TRUE(small.Do(PinEvent{.pinned = true, .reason = "test"}).status.ok());
  ASSERT_TRUE(small.Join("c", kExpertRole).ok());
  small.Settle({"a", "c"});
  EXPECT_EQ(small.View().active, PlacementVersion(1));
  ASSERT_TRUE(small.Do(PinEvent{}).status.ok());
  small.Settle({"a", "c"});
  EXPECT_EQ(small.View().active, PlacementVersion(2));
  EXPECT_EQ(small.View().waiting_for, "");
}

TEST_F(PlacementLife, ExpertsOfAWorkerThatCanNotLoadThemGoElsewhere) {
  StartTwo();
  ASSERT_TRUE(cluster.Join("b", kExpertRole).ok());
  control::Report failed;
  failed.versions = {{.version = PlacementVersion(1),
                      .state = control::ShardState::kFailed,
                      .error = "checkpoint is truncated",
                      .bytes_loaded = 0,
                      .bytes_total = 0}};
  ASSERT_TRUE(cluster.Beat("b", failed).ok());
  EXPECT_THAT(cluster.View().waiting_for, HasSubstr("checkpoint is truncated"));
  ASSERT_TRUE(cluster.Beat("a").ok());
  EXPECT_EQ(cluster.View().active, PlacementVersion(2));
  EXPECT_EQ(cluster.View().waiting_for, "");
}

TEST_F(PlacementLife, DrainingHandsExpertsOverBeforeTheWorkerMayStop) {
  StartTwo();
  EXPECT_EQ(
      cluster.Do(DrainEvent{.worker = "nobody", .drain = true}).status.code(),
      absl::StatusCode::kNotFound);
  ASSERT_TRUE(cluster.Do(DrainEvent{.worker = "b", .drain = true}).status.ok());
  const auto b = [&] { return *cluster.View().FindWorker(cluster.Id("b")); };
  EXPECT_TRUE(b().draining);
  EXPECT_FALSE(b().drained);
  EXPECT_EQ(cluster.View().active, PlacementVersion(1));
  ASSERT_TRUE(cluster.Beat("a").ok());
  EXPECT_EQ(cluster.View().active, PlacementVersion(2));
  EXPECT_FALSE(b().drained);  // version 1 still drains
  ASSERT_TRUE(cluster.Beat("t").ok());
  EXPECT_TRUE(b().drained);
  // It stays out until it is taken back.
  ASSERT_TRUE(cluster.Join("b", kExpertRole).ok());
  EXPECT_TRUE(b().draining);
  ASSERT_TRUE(
      cluster.Do(DrainEvent{.worker = "b", .drain = false}).status.ok());
  EXPECT_FALSE(b().draining);
}

// A trunk between two requests is no drained trunk: it has to know, and to say
// so.
TEST_F(PlacementLife, ATrunkIsDrainedOnceItRefusesRequestsAndHasNone) {
  StartTwo();
  const auto t = [&] { return *cluster.View().FindWorker(cluster.Id("t")); };
  const auto drain = [&](bool on) {
    ASSERT_TRUE(cluster.Do(DrainEvent{.worker = "t", .drain = on}).status.ok());
  };
  control::Report busy, rest;
  busy.oldest_in_flight = cluster.View().active;
  rest.at_rest = true;
  // It has nothing in flight, and has not heard of the drain.
  ASSERT_TRUE(cluster.Beat("t").ok());
  drain(true);
  EXPECT_TRUE(t().draining);
  EXPECT_FALSE(t().drained);
  ASSERT_TRUE(cluster.Beat("t", busy).ok());
  EXPECT_FALSE(t().drained);
  // Idle between two steps, with requests that run.
  ASSERT_TRUE(cluster.Beat("t").ok());
  EXPECT_FALSE(t().drained);
  ASSERT_TRUE(cluster.Beat("t", rest).ok());
  EXPECT_TRUE(t().drained);
  // What it said then says nothing about the next drain.
  drain(false);
  EXPECT_FALSE(t().drained);
  drain(true);
  EXPECT_FALSE(t().drained);
  ASSERT_TRUE(cluster.Beat("t", rest).ok());
  EXPECT_TRUE(t().drained);
  // Nor does it outlive the coordinator's memory.
  cluster.Restart();
  EXPECT_TRUE(t().draining);
  EXPECT_FALSE(t().drained);
  ASSERT_TRUE(cluster.Beat("t", rest).ok());
  EXPECT_TRUE(t().drained);
}

TEST_F(PlacementLife, AWorkerMayAskToBeDrainedAndIsBackWithItsNextProcess) {
  StartTwo();
  control::Report report;
  report.wants_drain = true;
  ASSERT_TRUE(cluster.Beat("b", report).ok());
  cluster.Settle(all);
  EXPECT_TRUE(cluster.View().FindWorker(cluster.Id("b"))->drained);
  ASSERT_TRUE(cluster.Join("b", kExpertRole).ok());
  EXPECT_FALSE(cluster.View().FindWorker(cluster.Id("b"))->draining);
}

TEST_F(PlacementLife, WithACopyElsewhereRedundancyIsRestoredLater) {
  DrivenCluster three(TestOptions(3, 2));
  for (const char* name : {"a", "b", "c"}) {
    ASSERT_TRUE(three.Join(name, kExpertRole).ok());
  }
  three.Settle({"a", "b", "c"});
  for (int i = 0; i < 58; ++i) {
    three.Wait(absl::Seconds(1));
    three.Settle({"a", "b"}, 1);
  }
  EXPECT_EQ(three.View().active, PlacementVersion(1));
  EXPECT_EQ(three.View().waiting_for, "");
  for (int i = 0; i < 8; ++i) {
    three.Wait(absl::Seconds(1));
    three.Settle({"a", "b"}, 1);
  }
  ASSERT_EQ(three.View().active, PlacementVersion(2));
  const placement::PlacementMap map = three.View().placements.back().map;
  for (const auto& layer : map.layers) {
    for (const auto& replicas : layer.replicas) EXPECT_EQ(replicas.size(), 2u);
  }
}

TEST_F(PlacementLife, AModelWithoutExpertsNeedsNoExpertWorker) {
  DrivenCluster dense(TestOptions(2));
  control::Registration trunk = TestRegistration("t", kTrunkRole);
  trunk.moe_layers.clear();
  ASSERT_TRUE(dense.Join(trunk).ok());
  EXPECT_EQ(dense.View().active, PlacementVersion(1));
  EXPECT_EQ(dense.View().waiting_for, "");
}

TEST_F(PlacementLife, EveryPhaseOfAChangeSurvivesARestart) {
  for (int crash = 0; crash < 6; ++crash) {
    DrivenCluster one(TestOptions(2));
    ASSERT_TRUE(one.Join("t", kTrunkRole).ok());
    ASSERT_TRUE(one.Join("a", kExpertRole).ok());
    ASSERT_TRUE(one.Join("b", kExpertRole).ok());
    one.Settle(all);
    ASSERT_TRUE(
        one.Do(ApplyEvent{.map = Rotated(one.View().placements.back().map,
                                         {one.Id("a"), one.Id("b")}, 1),
                          .origin = "apply",
                          .expected_active = {}})
            .status.ok());
    const char* beats[] = {"a", "b", "t"};
    for (int i = 0; i < crash && i < 3; ++i) {
      ASSERT_TRUE(one.Beat(beats[i]).ok());
    }
    one.Restart();
    EXPECT_TRUE(one.View().active.valid());
    one.Settle(all);
    EXPECT_EQ(one.View().active, PlacementVersion(2)) << crash;
    EXPECT_EQ(StateOf(one, 1), VersionState::kRetired) << crash;
    EXPECT_EQ(one.View().waiting_for, "") << crash;
  }
}

TEST_F(PlacementLife, KeepsABoundedNumberOfOldVersionsAndEntries) {
  CoreOptions options = TestOptions(2);
  options.driver.finished_kept = 3;
  options.driver.history_kept = 10;
  DrivenCluster one(options);
  ASSERT_TRUE(one.Join("a", kExpertRole).ok());
  ASSERT_TRUE(one.Join("b", kExpertRole).ok());
  one.Settle({"a", "b"});
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(
        one.Do(ApplyEvent{.map = Rotated(one.View().placements.back().map,
                                         {one.Id("a"), one.Id("b")}, 1),
                          .origin = "apply",
                          .expected_active = {}})
            .status.ok());
    one.Settle({"a", "b"});
  }
  EXPECT_EQ(one.View().active, PlacementVersion(21));
  EXPECT_EQ(one.contents().placements.size(), 4u);
  EXPECT_EQ(one.contents().history.size(), 10u);
}

}  // namespace
}  // namespace trunkline::coordinator
