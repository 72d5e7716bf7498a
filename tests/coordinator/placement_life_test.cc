// A placement version from its proposal to its end, event by event.

#include "tests/coordinator/placement_life.h"

#include <gmock/gmock.h>

namespace trunkline::coordinator {
namespace {

using placement::VersionState;
using testing::HasSubstr;

TEST_F(PlacementLife, WorkersMayJoinInAnyOrderAndTheFirstPlacementIsTheSame) {
  std::vector<std::string> names = {"a", "b", "t"};
  do {
    DrivenCluster one(TestOptions(2));
    for (const std::string& name : names) {
      EXPECT_NE(one.View().waiting_for, "");
      ASSERT_TRUE(one.Join(name, name == "t" ? kTrunkRole : kExpertRole).ok());
    }
    one.Settle(names);
    const control::ClusterView view = one.View();
    EXPECT_EQ(view.active, PlacementVersion(1));
    EXPECT_EQ(view.waiting_for, "");
    EXPECT_EQ(States(one, 1), (std::vector<std::string>{"proposed", "staging",
                                                        "ready", "active"}));
  } while (std::next_permutation(names.begin(), names.end()));
}

TEST_F(PlacementLife, SaysWhomItWaitsFor) {
  EXPECT_EQ(cluster.View().waiting_for, "no worker has registered");
  ASSERT_TRUE(cluster.Join("a", kExpertRole).ok());
  EXPECT_EQ(cluster.View().waiting_for, "1 of 2 expert workers have joined");
  ASSERT_TRUE(cluster.Join("b", kExpertRole).ok());
  EXPECT_THAT(cluster.View().waiting_for, HasSubstr("'a' has not reported"));
  ASSERT_TRUE(cluster.Beat("a").ok());
  EXPECT_THAT(cluster.View().waiting_for, HasSubstr("'b' has not reported"));
  ASSERT_TRUE(cluster.Beat("b").ok());
  EXPECT_EQ(cluster.View().waiting_for, "");
  cluster.Wait(absl::Seconds(1));
  ASSERT_TRUE(cluster.Beat("a").ok());
  cluster.Wait(absl::Seconds(1));
  EXPECT_THAT(cluster.View().waiting_for,
              HasSubstr("layer 1 expert 4: worker 'b' holds no lease"));
}

TEST_F(PlacementLife, AWorkerThatComesBackHasToReportReadyAgain) {
  StartTwo();
  ASSERT_TRUE(cluster.Join("b", kExpertRole).ok());
  EXPECT_THAT(cluster.View().waiting_for, HasSubstr("'b' has not reported"));
  EXPECT_EQ(cluster.View().active, PlacementVersion(1));
  ASSERT_TRUE(cluster.Beat("b").ok());
  EXPECT_EQ(cluster.View().waiting_for, "");
}

TEST_F(PlacementLife, AChangeIsActiveOnlyWhenEveryWorkerHasLoadedIt) {
  StartTwo();
  const Reply reply = ApplyRotated();
  ASSERT_TRUE(reply.status.ok()) << reply.status;
  EXPECT_EQ(std::get<ChangeReply>(reply.body).version, PlacementVersion(2));
  ASSERT_TRUE(cluster.Beat("a").ok());
  EXPECT_EQ(cluster.View().active, PlacementVersion(1));
  EXPECT_EQ(StateOf(cluster, 2), VersionState::kStaging);
  ASSERT_TRUE(cluster.Beat("b").ok());
  EXPECT_EQ(cluster.View().active, PlacementVersion(2));
  EXPECT_EQ(StateOf(cluster, 1), VersionState::kDraining);
}

// An idle trunk that has not seen version 2 would start its next step under
// version 1.
TEST_F(PlacementLife, TheOldVersionStaysUntilTheTrunkFollowsTheNewOne) {
  StartTwo();
  const control::ClusterView before = cluster.View();
  ASSERT_TRUE(ApplyRotated().status.ok());
  cluster.Settle({"a", "b"});
  ASSERT_EQ(StateOf(cluster, 1), VersionState::kDraining);
  control::Heartbeat behind;
  behind.worker = cluster.Id("t");
  behind.incarnation = 1;
  behind.cluster_id = 77;
  behind.view_epoch = before.epoch;
  behind.view_revision = before.revision;
  ASSERT_TRUE(cluster.Do(HeartbeatEvent{.heartbeat = behind}).status.ok());
  EXPECT_EQ(StateOf(cluster, 1), VersionState::kDraining);
  // It follows, but a step is still in flight under version 1.
  control::Report busy;
  busy.oldest_in_flight = PlacementVersion(1);
  ASSERT_TRUE(cluster.Beat("t", busy).ok());
  EXPECT_EQ(StateOf(cluster, 1), VersionState::kDraining);
  busy.oldest_in_flight = PlacementVersion(2);
  ASSERT_TRUE(cluster.Beat("t", busy).ok());
  EXPECT_EQ(StateOf(cluster, 1), VersionState::kRetired);
  EXPECT_EQ(cluster.View().placements.size(), 1u);
}

TEST_F(PlacementLife, ATrunkThatIsCutOffHoldsTheOldVersionForAWhile) {
  StartTwo();
  ASSERT_TRUE(ApplyRotated().status.ok());
  cluster.Settle({"a", "b"});
  for (int second = 0; second < 31; ++second) {
    EXPECT_EQ(StateOf(cluster, 1), VersionState::kDraining) << second;
    cluster.Wait(absl::Seconds(1));
    cluster.Settle({"a", "b"}, 1);
  }
  cluster.Wait(absl::Seconds(1));
  EXPECT_EQ(StateOf(cluster, 1), VersionState::kRetired);
}

TEST_F(PlacementLife, ATrunkThatSaidGoodbyeHoldsNothing) {
  StartTwo();
  ASSERT_TRUE(ApplyRotated().status.ok());
  cluster.Settle({"a", "b"});
  ASSERT_TRUE(
      cluster
          .Do(LeaveEvent{
              .worker = cluster.Id("t"), .incarnation = 1, .cluster_id = 77})
          .status.ok());
  EXPECT_EQ(StateOf(cluster, 1), VersionState::kRetired);
}

TEST_F(PlacementLife, AFailureWhileStagingAbandonsAndTheOldVersionServes) {
  StartTwo();
  ASSERT_TRUE(ApplyRotated().status.ok());
  control::Report failed;
  failed.versions = {{.version = PlacementVersion(2),
                      .state = control::ShardState::kFailed,
                      .error = "shard 3 has another digest",
                      .bytes_loaded = 0,
                      .bytes_total = 0}};
  ASSERT_TRUE(cluster.Beat("a", failed).ok());
  EXPECT_EQ(StateOf(cluster, 2), VersionState::kAbandoned);
  EXPECT_EQ(cluster.View().active, PlacementVersion(1));
  EXPECT_THAT(cluster.contents().placements.back().reason,
              HasSubstr("shard 3 has another digest"));
  // Nothing blocks the next change, which gets a new number.
  const Reply next = ApplyRotated();
  ASSERT_TRUE(next.status.ok()) << next.status;
  EXPECT_EQ(std::get<ChangeReply>(next.body).version, PlacementVersion(3));
}

TEST_F(PlacementLife, ALostOrRestartedWorkerAbandonsTheChange) {
  StartTwo();
  ASSERT_TRUE(ApplyRotated().status.ok());
  ASSERT_TRUE(cluster.Join("b", kExpertRole).ok());
  EXPECT_EQ(StateOf(cluster, 2), VersionState::kAbandoned);
  cluster.Settle(all);
  ASSERT_TRUE(ApplyRotated().status.ok());
  for (int i = 0; i < 2; ++i) {
    cluster.Wait(absl::Milliseconds(1500));
    cluster.Beat("a").IgnoreError();
    cluster.Beat("t").IgnoreError();
  }
  EXPECT_EQ(StateOf(cluster, 3), VersionState::kAbandoned);
  EXPECT_THAT(cluster.contents().placements.back().reason,
              HasSubstr("'b' holds no lease"));
  EXPECT_EQ(cluster.View().active, PlacementVersion(1));
}

TEST_F(PlacementLife, AChangeThatIsNeverReadyIsAbandonedInTheEnd) {
  StartTwo();
  cluster.StopLoading();
  ASSERT_TRUE(ApplyRotated().status.ok());
  control::Report old_only;
  old_only.versions = {{.version = PlacementVersion(1),
                        .state = control::ShardState::kReady,
                        .error = "",
                        .bytes_loaded = 0,
                        .bytes_total = 0}};
  for (int i = 0; i < 601; ++i) {
    ASSERT_EQ(StateOf(cluster, 2), VersionState::kStaging) << i;
    for (const std::string& name : all) {
      ASSERT_TRUE(cluster.Beat(name, old_only).ok());
    }
    cluster.Wait(absl::Seconds(1));
    if (i >= 599) break;
  }
  EXPECT_EQ(StateOf(cluster, 2), VersionState::kAbandoned);
}

TEST_F(PlacementLife, TheFirstPlacementIsMadeAnewWhenAWorkerIsLostEarly) {
  ASSERT_TRUE(cluster.Join("a", kExpertRole).ok());
  ASSERT_TRUE(cluster.Join("b", kExpertRole).ok());
  ASSERT_TRUE(cluster.Beat("a").ok());
  cluster.Wait(absl::Milliseconds(1500));
  ASSERT_TRUE(cluster.Beat("a").ok());
  cluster.Wait(absl::Milliseconds(600));
  EXPECT_EQ(StateOf(cluster, 1), VersionState::kAbandoned);
  ASSERT_TRUE(cluster.Join("c", kExpertRole).ok());
  for (int i = 0; i < 10; ++i) {
    cluster.Settle({"a", "c"}, 1);
    cluster.Wait(absl::Seconds(1));
  }
  EXPECT_EQ(cluster.View().active, PlacementVersion(2));
  EXPECT_EQ(cluster.View().waiting_for, "");
}

// A worker that restarts while the very first placement loads is waited for:
// there is nothing to fall back to.
TEST_F(PlacementLife, ARestartWhileTheFirstPlacementLoadsIsWaitedFor) {
  ASSERT_TRUE(cluster.Join("a", kExpertRole).ok());
  ASSERT_TRUE(cluster.Join("b", kExpertRole).ok());
  ASSERT_TRUE(cluster.Join("a", kExpertRole).ok());
  cluster.Settle({"a", "b"});
  EXPECT_EQ(cluster.View().active, PlacementVersion(1));
}

TEST_F(PlacementLife, RefusesAChangeThatDoesNotFit) {
  StartTwo();
  const placement::PlacementMap good = cluster.View().placements[0].map;
  const auto refused = [&](auto change, absl::StatusCode code,
                           const std::string& said) {
    ApplyEvent event;
    event.map = good;
    event.origin = "apply";
    change(event);
    const Reply reply = cluster.Do(event);
    EXPECT_EQ(reply.status.code(), code) << reply.status;
    EXPECT_THAT(std::string(reply.status.message()), HasSubstr(said));
  };
  const auto invalid = absl::StatusCode::kInvalidArgument;
  const auto precondition = absl::StatusCode::kFailedPrecondition;
  refused([](ApplyEvent&) {}, absl::StatusCode::kAlreadyExists, "version 1");
  refused([](ApplyEvent& e) { e.map.layers.pop_back(); }, invalid, "layer 4");
  refused([](ApplyEvent& e) { e.map.layers[0].replicas[3].clear(); }, invalid,
          "layer 1 expert 3 has no owner");
  refused(
      [](ApplyEvent& e) {
        for (auto& layer : e.map.layers) {
          for (auto& replicas : layer.replicas) {
            if (replicas[0].worker == WorkerId(2)) {
              replicas[0].worker = WorkerId(9);
            }
          }
        }
      },
      precondition, "worker 9");
  refused([](ApplyEvent& e) { e.expected_active = PlacementVersion(7); },
          precondition, "active is 1");
  ASSERT_TRUE(ApplyRotated().status.ok());
  refused([](ApplyEvent&) {}, precondition, "one change at a time");
}

TEST_F(PlacementLife, RefusesWhatWouldNotFitIntoMemoryWhileBothAreLoaded) {
  DrivenCluster small(TestOptions(2));
  for (const char* name : {"a", "b"}) {
    control::Registration registration = TestRegistration(name, kExpertRole);
    registration.memory_bytes = 1000;  // 8 of 16 experts are 800
    ASSERT_TRUE(small.Join(registration).ok());
  }
  small.Settle({"a", "b"});
  ASSERT_EQ(small.View().active, PlacementVersion(1));
  const placement::PlacementMap swapped = Rotated(
      small.View().placements[0].map, {small.Id("a"), small.Id("b")}, 1);
  const Reply reply = small.Do(
      ApplyEvent{.map = swapped, .origin = "apply", .expected_active = {}});
  EXPECT_EQ(reply.status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(reply.status.message()), HasSubstr("1600 bytes"));
}

}  // namespace
}  // namespace trunkline::coordinator
