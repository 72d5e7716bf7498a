// What a worker says to its coordinator next, whatever the last call did.

#include "control/worker_session.h"

#include <gtest/gtest.h>

#include "common/random.h"
#include "control/status_to_grpc.h"

namespace trunkline::control {
namespace {

Identity Me() {
  return {
      .worker = WorkerId(3), .incarnation = 2, .epoch = 1, .cluster_id = 77};
}

Report Loads(uint64_t rows) {
  Report report;
  report.loads = {
      {.layer = LayerIndex(1), .selected = {rows, 0}, .executed = {rows, 0}}};
  return report;
}

TEST(WorkerSession, RegistersUntilItHasAnIdentityAndAfterEveryNotFound) {
  WorkerSession session;
  EXPECT_FALSE(session.registered());
  session.OnRegistered(Me(), absl::Seconds(3));
  const WorkerSession::Next next = session.OnResult(absl::OkStatus());
  EXPECT_TRUE(session.registered());
  EXPECT_EQ(next.wait, absl::Seconds(1));
  EXPECT_TRUE(next.wakes_for_report);

  session.MakeHeartbeat({}, {});
  EXPECT_EQ(session.OnResult(absl::NotFoundError("")).wait,
            absl::ZeroDuration());
  EXPECT_FALSE(session.registered());
}

// A name that another process has is asked for once more at once, naming the
// process that is replaced; one answer is not followed twice.
TEST(WorkerSession, ANameThatIsHeldIsAskedForAgainNamingItsHolder) {
  WorkerSession session;
  EXPECT_EQ(session.MakeRegistration({}).replaces, 0u);
  absl::Status held = absl::AbortedError("incarnation 4 has it");
  SetNameHeld(4, &held);
  const WorkerSession::Next next = session.OnResult(held);
  EXPECT_FALSE(next.refused);
  EXPECT_EQ(next.wait, absl::ZeroDuration());
  Registration mine;
  mine.name = "a";
  EXPECT_EQ(session.MakeRegistration(mine).replaces, 4u);
  EXPECT_EQ(session.MakeRegistration(mine).name, "a");
  EXPECT_GT(session.OnResult(held).wait, absl::ZeroDuration())
      << "the same answer again is no news";
  SetNameHeld(6, &held);
  EXPECT_EQ(session.OnResult(held).wait, absl::ZeroDuration());
  EXPECT_EQ(session.MakeRegistration(mine).replaces, 6u);
  EXPECT_GT(session.OnResult(absl::AbortedError("says nothing")).wait,
            absl::ZeroDuration());
}

TEST(WorkerSession, RefusalsAreForGood) {
  WorkerSession session;
  EXPECT_TRUE(session.OnResult(absl::FailedPreconditionError("model")).refused);
  EXPECT_TRUE(session.OnResult(absl::InvalidArgumentError("name")).refused);
  EXPECT_FALSE(session.OnResult(absl::UnavailableError("away")).refused);
}

TEST(WorkerSession, WaitsGrowAndHeartbeatsAreTriedAgainWithinTheLease) {
  WorkerSession session;
  absl::Duration last;
  for (int i = 0; i < 8; ++i) {
    const absl::Duration wait =
        session.OnResult(absl::UnavailableError("away")).wait;
    EXPECT_GE(wait, last);
    EXPECT_LE(wait, absl::Seconds(1));
    last = wait;
  }
  session.OnRegistered(Me(), absl::Milliseconds(600));
  session.MakeHeartbeat({}, {});
  EXPECT_LE(session.OnResult(absl::UnavailableError("away")).wait,
            absl::Milliseconds(200));
}

TEST(WorkerSession, AnyLeaseIsBroughtIntoBounds) {
  for (const absl::Duration lease :
       {-absl::InfiniteDuration(), -absl::Seconds(1), absl::ZeroDuration(),
        absl::Seconds(2), absl::Hours(100), absl::InfiniteDuration()}) {
    WorkerSession session;
    session.OnRegistered(Me(), lease);
    EXPECT_GE(session.lease(), absl::Milliseconds(50));
    EXPECT_LE(session.lease(), absl::Hours(1));
  }
}

// Whatever is lost on the way, an acknowledged heartbeat ends the account: what
// arrived at least once is never less than what was counted.
TEST(WorkerSession, NoLoadIsLostWithAHeartbeat) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    RandomStream random(seed);
    WorkerSession session;
    session.OnRegistered(Me(), absl::Seconds(2));
    session.OnResult(absl::OkStatus());
    uint64_t counted = 0, acknowledged = 0;
    for (int i = 0; i < 20; ++i) {
      const uint64_t rows = random.NextBelow(5);
      counted += rows;
      const Heartbeat heartbeat = session.MakeHeartbeat({}, Loads(rows));
      const bool arrives = i == 19 || random.NextBelow(2) == 0;
      if (arrives) acknowledged += heartbeat.report.loads[0].selected[0];
      session.OnResult(arrives ? absl::OkStatus() : absl::UnavailableError(""));
    }
    EXPECT_EQ(acknowledged, counted) << "seed " << seed;
  }
}

TEST(FollowedView, ViewsNeverGoBackWithinACluster) {
  FollowedView followed;
  ClusterView view;
  view.cluster_id = 7;
  view.epoch = 2;
  view.revision = 5;
  EXPECT_TRUE(followed.IsOlderThan(view));
  followed.Set(view);
  EXPECT_FALSE(followed.IsOlderThan(view)) << "the same view again";
  view.revision = 6;
  EXPECT_TRUE(followed.IsOlderThan(view));
  view.epoch = 1;
  view.revision = 100;
  EXPECT_FALSE(followed.IsOlderThan(view)) << "a deposed coordinator's";
  view.cluster_id = 8;
  EXPECT_TRUE(followed.IsOlderThan(view)) << "another cluster starts anew";
}

}  // namespace
}  // namespace trunkline::control
