// The accuracy gate: compare, name, go back.

#include "coordinator/accuracy_gate.h"

#include <gmock/gmock.h>

#include "tests/coordinator/placement_life.h"

namespace trunkline::coordinator {
namespace {

using testing::HasSubstr;

control::CanaryResult Result(uint64_t version, const std::string& digest,
                             uint64_t before_version = 0,
                             const std::string& before_digest = "") {
  control::CanaryResult result;
  result.version = PlacementVersion(version);
  result.digest = digest;
  result.prompt = "portable/128+8";
  if (before_version != 0) {
    result.before_version = PlacementVersion(before_version);
    result.before_digest = before_digest;
  }
  return result;
}

TEST(AccuracyGate, TheFirstAnswerIsTheOneToCompareWith) {
  AccuracyGate gate;
  EXPECT_EQ(gate.Describe(PlacementVersion(1)), "");
  EXPECT_FALSE(gate.OnResult("t", Result(1, "aa"), PlacementVersion(1)));
  EXPECT_TRUE(gate.verified(PlacementVersion(1)));
  EXPECT_FALSE(gate.OnResult("t", Result(2, "aa"), PlacementVersion(2)));
  const auto mismatch =
      gate.OnResult("t", Result(3, "bb"), PlacementVersion(3));
  ASSERT_TRUE(mismatch.has_value());
  EXPECT_EQ(mismatch->bad, PlacementVersion(3));
  EXPECT_EQ(mismatch->good, PlacementVersion(2));
  EXPECT_THAT(mismatch->detail, HasSubstr("trunk 't'"));
  EXPECT_THAT(mismatch->detail, HasSubstr("version 3"));
  EXPECT_THAT(gate.Describe(PlacementVersion(3)), HasSubstr("FAILED"));
  // Every heartbeat repeats it; it is told once.
  EXPECT_FALSE(gate.OnResult("t", Result(3, "bb"), PlacementVersion(3)));
  EXPECT_FALSE(gate.OnResult("u", Result(3, "bb"), PlacementVersion(3)));
  EXPECT_FALSE(gate.OnResult("t", Result(4, "aa"), PlacementVersion(4)));
  EXPECT_THAT(gate.Describe(PlacementVersion(4)), HasSubstr("expected"));
  EXPECT_THAT(gate.Describe(PlacementVersion(4)), HasSubstr("last mismatch"));
}

TEST(AccuracyGate, ResultsUnderOtherThanTheActiveVersionCondemnNothing) {
  AccuracyGate gate;
  EXPECT_FALSE(gate.OnResult("t", Result(1, "aa"), PlacementVersion(1)));
  EXPECT_FALSE(gate.OnResult("t", Result(2, "bb"), PlacementVersion(3)));
}

// The coordinator restarted right after a wrong version was activated.
TEST(AccuracyGate, AnAnswerFromBeforeTheRestartStillCounts) {
  AccuracyGate gate;
  const auto mismatch =
      gate.OnResult("t", Result(5, "bb", 4, "aa"), PlacementVersion(5));
  ASSERT_TRUE(mismatch.has_value());
  EXPECT_EQ(mismatch->good, PlacementVersion(4));
}

TEST(AccuracyGate, OtherPromptsAreNotCompared) {
  AccuracyGate gate;
  EXPECT_FALSE(gate.OnResult("t", Result(1, "aa"), PlacementVersion(1)));
  control::CanaryResult other = Result(1, "bb");
  other.prompt = "portable/16+8";
  EXPECT_FALSE(gate.OnResult("u", other, PlacementVersion(1)));
}

class CanaryLife : public PlacementLife {
 protected:
  absl::Status Canary(uint64_t version, const std::string& digest) {
    control::Report report;
    report.canary = Result(version, digest);
    return cluster.Beat("t", report);
  }
};

TEST_F(CanaryLife, AVersionWithOtherBitsIsRolledBackByItself) {
  StartTwo();
  ASSERT_TRUE(Canary(1, "aa").ok());
  ASSERT_TRUE(ApplyRotated().status.ok());
  cluster.Settle(all);
  ASSERT_EQ(cluster.View().active, PlacementVersion(2));
  ASSERT_TRUE(Canary(2, "bb").ok());
  cluster.Settle(all);
  EXPECT_EQ(cluster.View().active, PlacementVersion(3));
  const PlacementRecord* active = cluster.core().driver().Active();
  EXPECT_THAT(active->origin, HasSubstr("rollback to 1: version 2 failed"));
  const auto& before =
      cluster.core().driver().Find(PlacementVersion(1))->map.layers;
  ASSERT_EQ(active->map.layers.size(), before.size());
  for (size_t l = 0; l < before.size(); ++l)
    EXPECT_EQ(active->map.layers[l].replicas, before[l].replicas);
  EXPECT_THAT(cluster.notes(), testing::Contains(HasSubstr("ACCURACY")));
  ASSERT_TRUE(Canary(3, "aa").ok());
  EXPECT_TRUE(cluster.core().accuracy().verified(PlacementVersion(3)));
  EXPECT_EQ(cluster.View().active, PlacementVersion(3));
}

TEST_F(CanaryLife, EqualBitsChangeNothing) {
  StartTwo();
  ASSERT_TRUE(Canary(1, "aa").ok());
  ASSERT_TRUE(ApplyRotated().status.ok());
  cluster.Settle(all);
  ASSERT_TRUE(Canary(2, "aa").ok());
  cluster.Settle(all);
  EXPECT_EQ(cluster.View().active, PlacementVersion(2));
}

// What was being staged was thought out from the wrong version.
TEST_F(CanaryLife, AChangeUnderWayGivesWayToTheRollback) {
  StartTwo();
  ASSERT_TRUE(Canary(1, "aa").ok());
  ASSERT_TRUE(ApplyRotated().status.ok());
  cluster.Settle(all);
  ASSERT_EQ(cluster.View().active, PlacementVersion(2));
  ASSERT_TRUE(ApplyRotated().status.ok());  // version 3
  ASSERT_TRUE(Canary(2, "bb").ok());
  EXPECT_EQ(StateOf(cluster, 3), placement::VersionState::kAbandoned);
  cluster.Settle(all);
  EXPECT_EQ(cluster.View().active, PlacementVersion(4));
}

// The rollback gives other bits as well: a worker's memory is damaged, and no
// placement helps. It must not go round in circles.
TEST_F(CanaryLife, ARollbackThatFailsTooStaysAndIsTold) {
  StartTwo();
  ASSERT_TRUE(Canary(1, "aa").ok());
  ASSERT_TRUE(ApplyRotated().status.ok());
  cluster.Settle(all);
  ASSERT_TRUE(Canary(2, "bb").ok());
  cluster.Settle(all);
  ASSERT_EQ(cluster.View().active, PlacementVersion(3));
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(Canary(3, "cc").ok());
    cluster.Settle(all);
  }
  EXPECT_EQ(cluster.View().active, PlacementVersion(3));
  EXPECT_THAT(cluster.notes(),
              testing::Contains(HasSubstr("version 3 stays active")));
}

}  // namespace
}  // namespace trunkline::coordinator
