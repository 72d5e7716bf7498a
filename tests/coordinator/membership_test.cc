// Who may join, how long they stay, and what a restart remembers.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/coordinator/cluster_fixture.h"

namespace trunkline::coordinator {
namespace {

using testing::HasSubstr;

std::string Message(const absl::Status& status) {
  return std::string(status.message());
}

TEST(CoordinatorMembership, TheSameNameKeepsItsIdAndGetsANewIncarnation) {
  DrivenCluster cluster(TestOptions(2));
  const auto first = cluster.Join("a", kExpertRole);
  const auto other = cluster.Join("b", kExpertRole);
  const auto again = cluster.Join("a", kExpertRole);
  ASSERT_TRUE(first.ok() && other.ok() && again.ok());
  EXPECT_EQ(first->worker, again->worker);
  EXPECT_NE(first->worker, other->worker);
  EXPECT_EQ(again->incarnation, first->incarnation + 1);
  // The same name in the other role is somebody else.
  const auto trunk = cluster.Join("a", kTrunkRole);
  ASSERT_TRUE(trunk.ok());
  EXPECT_NE(trunk->worker, first->worker);
}

TEST(CoordinatorMembership, RefusesAnotherModelNamingBothDigests) {
  DrivenCluster cluster(TestOptions(2));
  ASSERT_TRUE(cluster.Join("a", kExpertRole).ok());
  control::Registration other = TestRegistration("b", kExpertRole);
  other.model_digest = "digest-b";
  const absl::Status status = cluster.Join(other).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(status), HasSubstr("digest-a"));
  EXPECT_THAT(Message(status), HasSubstr("digest-b"));
  EXPECT_THAT(Message(status), HasSubstr("'b'"));
  EXPECT_EQ(cluster.View().workers.size(), 1u);
}

TEST(CoordinatorMembership, RefusesOtherArithmeticOrOtherLayersByName) {
  DrivenCluster cluster(TestOptions(2));
  ASSERT_TRUE(cluster.Join("a", kExpertRole).ok());
  const auto refused = [&](auto change, const std::string& said) {
    control::Registration other = TestRegistration("b", kTrunkRole);
    change(other);
    const absl::Status status = cluster.Join(other).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << said;
    EXPECT_THAT(Message(status), HasSubstr(said));
  };
  refused([](auto& r) { r.numerics_class = "bf16dot"; }, "bf16dot");
  refused([](auto& r) { r.self_check_digest = "check-2"; }, "check-2");
  refused([](auto& r) { r.moe_layers.pop_back(); }, "moe layers");
  refused([](auto& r) { r.moe_layers[1].experts = 9; }, "9 experts");
  refused([](auto& r) { r.moe_layers[1].layer = LayerIndex(5); }, "layer 5");
  // Sizes are the business of expert workers alone.
  control::Registration trunk = TestRegistration("t", kTrunkRole);
  trunk.moe_layers[0].expert_bytes = 0;
  EXPECT_TRUE(cluster.Join(trunk).ok());
}

// What the operator fixes holds for the first worker too, is shown before there
// is one, and can not change under a cluster.
TEST(CoordinatorMembership, AFixedNumericsClassHoldsFromTheFirstWorkerOn) {
  CoreOptions options = TestOptions(1);
  options.numerics_class = "bf16dot";
  DrivenCluster cluster(options);
  EXPECT_EQ(cluster.View().numerics_class, "bf16dot");
  const absl::Status refused = cluster.Join("a", kExpertRole).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(refused), HasSubstr("'a' has numerics class portable"));
  EXPECT_THAT(Message(refused), HasSubstr("--numerics bf16dot"));
  control::Registration dot = TestRegistration("b", kExpertRole);
  dot.numerics_class = "bf16dot";
  EXPECT_TRUE(cluster.Join(dot).ok());
}

TEST(CoordinatorMembership, WithoutAFixedClassTheFirstWorkersIsShown) {
  DrivenCluster cluster(TestOptions(1));
  EXPECT_EQ(cluster.View().numerics_class, "");
  ASSERT_TRUE(cluster.Join("a", kExpertRole).ok());
  EXPECT_EQ(cluster.View().numerics_class, "portable");
  cluster.Restart();
  EXPECT_EQ(cluster.View().numerics_class, "portable");
}

TEST(CoordinatorMembership, AStoredClusterDoesNotChangeItsClass) {
  DrivenCluster before(TestOptions(1));
  ASSERT_TRUE(before.Join("a", kExpertRole).ok());
  CoreOptions options = TestOptions(1);
  options.numerics_class = "bf16dot";
  Coordinator core(options, before.contents(), 1, before.At());
  EXPECT_EQ(core.View().numerics_class, "portable");
  for (const char* own : {"portable", "bf16dot"}) {
    control::Registration again = TestRegistration("a", kExpertRole);
    again.numerics_class = own;
    const Actions actions =
        core.Step(RegisterEvent{.registration = again}, before.At());
    ASSERT_TRUE(actions.reply.has_value());
    EXPECT_THAT(Message(actions.reply->status),
                HasSubstr("its store holds a cluster of numerics class "
                          "portable (since worker 'a' joined)"))
        << own;
  }
}

// Fixed capacity makes another model of a checkpoint.
TEST(CoordinatorMembership, RefusesATrunkWithAnotherAdmissionThanALiveOne) {
  DrivenCluster cluster(TestOptions(1));
  const auto join = [&](const std::string& name, const std::string& admission) {
    control::Registration trunk = TestRegistration(name, kTrunkRole);
    trunk.admission = admission;
    return cluster.Join(trunk).status();
  };
  ASSERT_TRUE(cluster.Join("a", kExpertRole).ok());
  ASSERT_TRUE(join("t", "dropless").ok());
  EXPECT_TRUE(join("u", "dropless").ok());
  const absl::Status refused = join("v", "capacity:factor=1");
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(refused), HasSubstr("'v' has admission capacity"));
  EXPECT_THAT(Message(refused), HasSubstr("dropless"));
  // The last one left may come back as another.
  EXPECT_FALSE(join("t", "capacity:factor=1").ok()) << "'u' is alive";
}

TEST(CoordinatorMembership, TakesSizesFromTheFirstExpertWorker) {
  DrivenCluster cluster(TestOptions(1));
  control::Registration trunk = TestRegistration("t", kTrunkRole);
  for (auto& shape : trunk.moe_layers) shape.expert_bytes = 1;
  ASSERT_TRUE(cluster.Join(trunk).ok());
  ASSERT_TRUE(cluster.Join("a", kExpertRole).ok());
  EXPECT_EQ(cluster.View().moe_layers[0].expert_bytes, 100);
  control::Registration other = TestRegistration("b", kExpertRole);
  other.moe_layers[0].expert_bytes = 7;
  EXPECT_THAT(Message(cluster.Join(other).status()),
              HasSubstr("7 bytes per expert"));
}

TEST(CoordinatorMembership, NamesTheFieldOfARegistrationThatIsNotValid) {
  DrivenCluster cluster(TestOptions(1));
  const auto refused = [&](auto change, const std::string& field) {
    control::Registration bad = TestRegistration("a", kExpertRole);
    change(bad);
    const absl::Status status = cluster.Join(bad).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << field;
    EXPECT_THAT(Message(status), testing::StartsWith(field));
  };
  refused([](auto& r) { r.name = ""; }, "name");
  refused([](auto& r) { r.name = "a b"; }, "name");
  refused([](auto& r) { r.name = std::string(300, 'x'); }, "name");
  refused([](auto& r) { r.data_address = ""; }, "data_address");
  refused([](auto& r) { r.model_digest = ""; }, "model_digest");
  refused([](auto& r) { r.numerics_class = ""; }, "numerics_class");
  refused([](auto& r) { r.self_check_digest = ""; }, "self_check_digest");
  refused([](auto& r) { r.speed = -1; }, "speed");
  refused([](auto& r) { r.process = 0; }, "process");
  refused([](auto& r) { r.moe_layers[0].experts = 0; }, "moe_layers");
  refused([](auto& r) { std::swap(r.moe_layers[0], r.moe_layers[1]); },
          "moe_layers");
  EXPECT_TRUE(cluster.View().workers.empty());
}

TEST(CoordinatorMembership, ASilentWorkerLosesItsLeaseAndIsToldSo) {
  DrivenCluster cluster(TestOptions(1));
  ASSERT_TRUE(cluster.Join("a", kExpertRole).ok());
  for (int i = 0; i < 5; ++i) {
    cluster.Wait(absl::Milliseconds(1900));
    ASSERT_TRUE(cluster.Beat("a").ok()) << i;
  }
  cluster.Wait(absl::Milliseconds(2000));
  EXPECT_FALSE(cluster.View().workers[0].alive);
  EXPECT_TRUE(cluster.View().workers[0].versions.empty());
  EXPECT_EQ(cluster.Beat("a").code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(cluster.Join("a", kExpertRole).ok());
  EXPECT_TRUE(cluster.View().workers[0].alive);
}

// A heartbeat that comes after the lease's end finds it gone even if nobody
// ticked in between.
TEST(CoordinatorMembership, ALateHeartbeatDoesNotBringTheLeaseBack) {
  DrivenCluster cluster(TestOptions(1));
  ASSERT_TRUE(cluster.Join("a", kExpertRole).ok());
  control::Heartbeat late;
  late.worker = cluster.Id("a");
  late.incarnation = 1;
  late.cluster_id = 77;
  Moment moment = cluster.At();
  moment.now += absl::Seconds(2);
  const Actions actions =
      cluster.core().Step(HeartbeatEvent{.heartbeat = late}, moment);
  EXPECT_EQ(actions.reply->status.code(), absl::StatusCode::kNotFound);
}

TEST(CoordinatorMembership, TheOlderOfTwoProcessesWithOneNameHasToStop) {
  DrivenCluster cluster(TestOptions(1));
  const auto older = cluster.Join("a", kExpertRole);
  ASSERT_TRUE(cluster.Join("a", kExpertRole).ok());
  control::Heartbeat heartbeat;
  heartbeat.worker = older->worker;
  heartbeat.incarnation = older->incarnation;
  heartbeat.cluster_id = older->cluster_id;
  const Reply reply = cluster.Do(HeartbeatEvent{.heartbeat = heartbeat});
  EXPECT_EQ(reply.status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(reply.status), HasSubstr("replaced"));
}

// The network may bring a request twice, or after its sender has asked again.
TEST(CoordinatorMembership, TheSameProcessKeepsItsIncarnationHoweverOften) {
  DrivenCluster cluster(TestOptions(1));
  const control::Registration a = TestRegistration("a", kExpertRole);
  const auto first = cluster.Join(a);
  cluster.Settle({"a"});
  const control::ClusterView before = cluster.View();
  ASSERT_TRUE(before.active.valid());
  ASSERT_EQ(before.workers[0].versions.size(), 1u);
  const auto again = cluster.Join(a);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->worker, first->worker);
  EXPECT_EQ(again->incarnation, first->incarnation);
  // Nobody is shown anything: it still has what it had.
  EXPECT_EQ(cluster.View().revision, before.revision);
  EXPECT_EQ(cluster.View().workers[0].versions.size(), 1u);
  EXPECT_TRUE(cluster.Beat("a").ok());
  // So also after its lease, and after the coordinator's restart.
  cluster.Wait(absl::Seconds(2));
  EXPECT_EQ(cluster.Beat("a").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(cluster.Join(a)->incarnation, first->incarnation);
  EXPECT_TRUE(cluster.View().workers[0].alive);
  cluster.Restart();
  EXPECT_EQ(cluster.Join(a)->incarnation, first->incarnation);
  EXPECT_TRUE(cluster.Beat("a").ok());
}

TEST(CoordinatorMembership, ALateRequestOfAReplacedProcessTakesNothingBack) {
  DrivenCluster cluster(TestOptions(1));
  const control::Registration older = TestRegistration("a", kExpertRole);
  ASSERT_TRUE(cluster.Join(older).ok());
  const auto newer = cluster.Join("a", kExpertRole);
  ASSERT_TRUE(newer.ok());
  const auto refused = [&](const control::Registration& late) {
    const absl::Status status =
        cluster.Do(RegisterEvent{.registration = late}).status;
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(Message(status), HasSubstr("replaced by incarnation 2"));
    EXPECT_EQ(cluster.View().workers[0].incarnation, newer->incarnation);
  };
  refused(older);
  EXPECT_TRUE(cluster.Beat("a").ok());
  // Nor when the newer one is silent, nor by naming it, nor after a restart.
  control::Registration naming = older;
  naming.replaces = newer->incarnation;
  refused(naming);
  cluster.Wait(absl::Seconds(2));
  refused(older);
  EXPECT_FALSE(cluster.View().workers[0].alive);
  cluster.Restart();
  refused(naming);
}

// The first request of a process that ended before the newer one began, held
// back by the network: nobody knows this process yet.
TEST(CoordinatorMembership, ALateRequestOfAProcessNeverSeenTakesNothing) {
  DrivenCluster cluster(TestOptions(1));
  ASSERT_TRUE(cluster.Join("a", kExpertRole).ok());
  control::Registration held_back = TestRegistration("a", kExpertRole);
  control::Registration told = held_back;
  told.replaces = 1;
  const auto newer = cluster.Join("a", kExpertRole);
  ASSERT_EQ(newer->incarnation, 2u);
  for (const control::Registration& late : {held_back, told}) {
    const absl::Status status =
        cluster.Do(RegisterEvent{.registration = late}).status;
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
    EXPECT_EQ(control::NameHeldBy(status), 2u);
    EXPECT_THAT(Message(status), HasSubstr("incarnation 2's at inprocess://a"));
    EXPECT_TRUE(cluster.Beat("a").ok());
  }
  // Who is told, and asks again, has the name: the last to come, as ever.
  held_back.replaces = 2;
  EXPECT_EQ(cluster.Join(held_back)->incarnation, 3u);
}

TEST(CoordinatorMembership, ALateRequestOfAProcessThatLeftBringsNothingBack) {
  DrivenCluster cluster(TestOptions(1));
  const control::Registration a = TestRegistration("a", kExpertRole);
  const auto identity = cluster.Join(a);
  ASSERT_TRUE(cluster
                  .Do(LeaveEvent{.worker = identity->worker,
                                 .incarnation = identity->incarnation,
                                 .cluster_id = 77})
                  .status.ok());
  const absl::Status status =
      cluster.Do(RegisterEvent{.registration = a}).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(status), HasSubstr("has left"));
  EXPECT_FALSE(cluster.View().workers[0].alive);
}

TEST(CoordinatorMembership, HeartbeatsNobodyKnowsAreNotFound) {
  DrivenCluster cluster(TestOptions(1));
  control::Heartbeat heartbeat;
  heartbeat.worker = WorkerId(5);
  EXPECT_EQ(cluster.Do(HeartbeatEvent{.heartbeat = heartbeat}).status.code(),
            absl::StatusCode::kNotFound);
  ASSERT_TRUE(cluster.Join("a", kExpertRole).ok());
  heartbeat.worker = cluster.Id("a");
  heartbeat.incarnation = 99;
  heartbeat.cluster_id = 77;
  EXPECT_EQ(cluster.Do(HeartbeatEvent{.heartbeat = heartbeat}).status.code(),
            absl::StatusCode::kNotFound);
}

// A coordinator that lost its memory gives the same small ids to others.
TEST(CoordinatorMembership, AnIdentityOfAnotherClusterCountsForNothing) {
  DrivenCluster cluster(TestOptions(1));
  ASSERT_TRUE(cluster.Join("a", kExpertRole).ok());
  control::Heartbeat heartbeat;
  heartbeat.worker = cluster.Id("a");
  heartbeat.incarnation = 1;
  heartbeat.cluster_id = 78;
  EXPECT_EQ(cluster.Do(HeartbeatEvent{.heartbeat = heartbeat}).status.code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(
      cluster
          .Do(LeaveEvent{
              .worker = cluster.Id("a"), .incarnation = 1, .cluster_id = 78})
          .status.code(),
      absl::StatusCode::kNotFound);
  EXPECT_TRUE(cluster.View().workers[0].alive);
}

TEST(CoordinatorMembership, LoadsOfAnotherShapeAreRefusedNamingTheLayer) {
  DrivenCluster cluster(TestOptions(1));
  ASSERT_TRUE(cluster.Join("t", kTrunkRole).ok());
  const auto refused = [&](uint32_t layer, size_t experts) {
    control::Report report;
    report.loads.push_back({.layer = LayerIndex(layer),
                            .selected = std::vector<uint64_t>(experts),
                            .executed = std::vector<uint64_t>(experts)});
    const absl::Status status = cluster.Beat("t", report);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(Message(status), HasSubstr(absl::StrCat("layer ", layer)));
  };
  refused(2, 8);
  refused(1, 7);
}

TEST(CoordinatorMembership, LeavingEndsTheLeaseAtOnceAndKeepsTheIdentity) {
  DrivenCluster cluster(TestOptions(1));
  const auto identity = cluster.Join("a", kExpertRole);
  EXPECT_EQ(
      cluster
          .Do(LeaveEvent{
              .worker = identity->worker, .incarnation = 9, .cluster_id = 77})
          .status.code(),
      absl::StatusCode::kNotFound);
  EXPECT_TRUE(cluster
                  .Do(LeaveEvent{.worker = identity->worker,
                                 .incarnation = identity->incarnation,
                                 .cluster_id = 77})
                  .status.ok());
  EXPECT_FALSE(cluster.View().workers[0].alive);
  EXPECT_EQ(cluster.Join("a", kExpertRole)->worker, identity->worker);
}

TEST(CoordinatorMembership, ARestartRemembersIdentitiesAndGivesThemTime) {
  DrivenCluster cluster(TestOptions(1));
  const auto identity = cluster.Join("a", kExpertRole);
  cluster.Settle({"a"});
  ASSERT_TRUE(cluster.View().active.valid());
  cluster.Restart();
  const control::ClusterView view = cluster.View();
  EXPECT_EQ(view.epoch, 2u);
  EXPECT_TRUE(view.workers[0].alive);
  EXPECT_EQ(view.waiting_for, "");
  // Heartbeats go on as if nothing had happened.
  cluster.Wait(absl::Seconds(5));
  EXPECT_TRUE(cluster.Beat("a").ok());
  EXPECT_EQ(cluster.View().workers[0].incarnation, identity->incarnation);
  // Who does not come back is out after a few leases.
  cluster.Restart();
  cluster.Wait(absl::Seconds(6));
  EXPECT_FALSE(cluster.View().workers[0].alive);
}

TEST(CoordinatorMembership, ForgetsWhoIsGoneForLongAndNeverReusesTheId) {
  DrivenCluster cluster(TestOptions(1));
  ASSERT_TRUE(cluster.Join("a", kExpertRole).ok());
  ASSERT_TRUE(cluster.Join("t", kTrunkRole).ok());
  cluster.Settle({"a", "t"});
  const WorkerId trunk = cluster.Id("t");
  cluster.Wait(absl::Seconds(3));  // both are lost
  cluster.Wait(absl::Minutes(59));
  EXPECT_EQ(cluster.View().workers.size(), 2u);
  cluster.Wait(absl::Minutes(2));
  // The expert worker is named by the active placement, the trunk by nothing.
  ASSERT_EQ(cluster.View().workers.size(), 1u);
  EXPECT_EQ(cluster.View().workers[0].name, "a");
  EXPECT_EQ(cluster.contents().workers.size(), 1u);
  EXPECT_GT(cluster.Join("t", kTrunkRole)->worker, trunk);
}

}  // namespace
}  // namespace trunkline::coordinator
