// A placement version from its proposal to its end, event by event.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/coordinator/cluster_fixture.h"

namespace trunkline::coordinator {
namespace {

using placement::VersionState;
using testing::HasSubstr;

placement::PlacementMap Rotated(const placement::PlacementMap& map,
                                std::vector<WorkerId> workers, size_t by) {
  placement::PlacementMap rotated = map;
  for (auto& layer : rotated.layers) {
    for (auto& replicas : layer.replicas) {
      for (auto& replica : replicas) {
        const size_t index = static_cast<size_t>(
            std::find(workers.begin(), workers.end(), replica.worker) -
            workers.begin());
        replica.worker = workers[(index + by) % workers.size()];
      }
    }
  }
  placement::AssignSlots(&rotated);
  return rotated;
}

std::vector<std::string> States(const DrivenCluster& cluster,
                                uint64_t version) {
  std::vector<std::string> states;
  for (const HistoryRecord& entry : cluster.contents().history) {
    if (entry.version.value == version) states.push_back(Name(entry.state));
  }
  return states;
}

VersionState StateOf(const DrivenCluster& cluster, uint64_t version) {
  for (const PlacementRecord& record : cluster.contents().placements) {
    if (record.map.version.value == version) return record.state;
  }
  ADD_FAILURE() << "version " << version << " is not stored";
  return VersionState::kAbandoned;
}

class PlacementLife : public testing::Test {
 protected:
  // Two expert workers and a trunk, version 1 active.
  void StartTwo() {
    ASSERT_TRUE(cluster.Join("t", kTrunkRole).ok());
    ASSERT_TRUE(cluster.Join("a", kExpertRole).ok());
    ASSERT_TRUE(cluster.Join("b", kExpertRole).ok());
    cluster.Settle(all);
    ASSERT_EQ(cluster.View().active, PlacementVersion(1));
  }
  Reply ApplyRotated() {
    return cluster.Do(
        ApplyEvent{.map = Rotated(cluster.View().placements.back().map,
                                  {cluster.Id("a"), cluster.Id("b")}, 1),
                   .origin = "apply",
                   .expected_active = PlacementVersion()});
  }

  DrivenCluster cluster{TestOptions(2)};
  const std::vector<std::string> all = {"t", "a", "b"};
};

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
