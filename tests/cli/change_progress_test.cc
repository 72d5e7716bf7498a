#include "cli/change_progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trunkline::cli {
namespace {

using admin::ShowResponse;
using ::testing::HasSubstr;
using namespace control::v1;  // the states' names

ShowResponse ShowOf(uint64_t version, PlacementState state) {
  ShowResponse show;
  show.set_active_version(3);
  admin::VersionInfo* info = show.add_versions();
  info->set_version(version);
  info->set_state(state);
  info->set_workers(3);
  info->set_workers_ready(1);
  info->set_bytes_loaded(1 << 20);
  info->set_bytes_total(4 << 20);
  info->set_reason("worker 'b' was lost");
  return show;
}

admin::WorkerInfo* AddWorker(ShowResponse* show, const std::string& name) {
  admin::WorkerInfo* info = show->add_workers();
  info->mutable_worker()->set_name(name);
  info->mutable_worker()->set_alive(true);
  info->mutable_worker()->set_draining(true);
  return info;
}

TEST(JudgeChange, IsUnderWayUntilActive) {
  for (const PlacementState state :
       {PLACEMENT_STATE_PROPOSED, PLACEMENT_STATE_STAGING,
        PLACEMENT_STATE_READY}) {
    const ChangeProgress progress = JudgeChange(ShowOf(4, state), 4);
    EXPECT_FALSE(progress.over);
    EXPECT_EQ(progress.bytes_done, 1 << 20);
    EXPECT_EQ(progress.bytes_total, 4 << 20);
    EXPECT_THAT(progress.text, HasSubstr("1 of 3 workers"));
    EXPECT_THAT(progress.text, HasSubstr("1.00 MiB of 4.00 MiB"));
  }
  ShowResponse active = ShowOf(4, PLACEMENT_STATE_ACTIVE);
  active.set_active_version(4);
  const ChangeProgress progress = JudgeChange(active, 4);
  EXPECT_TRUE(progress.over);
  EXPECT_TRUE(progress.failure.ok());
  EXPECT_EQ(progress.text, "version 4 is active");
}

TEST(JudgeChange, AVersionThatWasReplacedSinceHadBecomeActive) {
  for (const PlacementState state :
       {PLACEMENT_STATE_DRAINING, PLACEMENT_STATE_RETIRED}) {
    const ChangeProgress progress = JudgeChange(ShowOf(2, state), 2);
    EXPECT_TRUE(progress.over);
    EXPECT_TRUE(progress.failure.ok());
    EXPECT_THAT(progress.text, HasSubstr("version 3 has taken over"));
  }
}

TEST(JudgeChange, AnAbandonedOneIsAFailureWithItsReason) {
  const ChangeProgress progress =
      JudgeChange(ShowOf(4, PLACEMENT_STATE_ABANDONED), 4);
  EXPECT_TRUE(progress.over);
  EXPECT_EQ(progress.failure.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(progress.failure.message(), HasSubstr("worker 'b' was lost"));
  EXPECT_EQ(JudgeChange(ShowOf(4, PLACEMENT_STATE_STAGING), 9).failure.code(),
            absl::StatusCode::kNotFound);
}

TEST(JudgeDrain, IsOverWhenTheWorkerMayStop) {
  ShowResponse show = ShowOf(4, PLACEMENT_STATE_STAGING);
  show.set_blocked("no room for layer 4, expert 9");
  AddWorker(&show, "a")->mutable_worker()->set_drained(true);
  admin::WorkerInfo* b = AddWorker(&show, "b");
  b->set_copies(12);
  const ChangeProgress under_way = JudgeDrain(show, "b");
  EXPECT_FALSE(under_way.over);
  EXPECT_THAT(under_way.text, HasSubstr("b: holds 12 experts"));
  EXPECT_THAT(under_way.text, HasSubstr("version 4 is staging"));
  EXPECT_EQ(under_way.bytes_total, 4 << 20);
  EXPECT_EQ(under_way.blocked, "no room for layer 4, expert 9");
  b->set_copies(0);
  EXPECT_THAT(JudgeDrain(show, "b").text, HasSubstr("in flight"));
  b->mutable_worker()->set_drained(true);
  EXPECT_EQ(JudgeDrain(show, "b").text, "b: safe to stop");
  b->mutable_worker()->set_alive(false);
  EXPECT_EQ(JudgeDrain(show, "b").text, "b: safe to stop (it does not run)");
}

TEST(JudgeDrain, ATrunkAndAnExpertOfOneNameAreBothWaitedFor) {
  ShowResponse show;
  AddWorker(&show, "a")->mutable_worker()->set_drained(true);
  AddWorker(&show, "a");
  EXPECT_FALSE(JudgeDrain(show, "a").over);
}

TEST(JudgeDrain, AnUnknownNameOrADrainThatWasCalledOffIsAFailure) {
  ShowResponse show;
  AddWorker(&show, "a")->mutable_worker()->set_draining(false);
  EXPECT_EQ(JudgeDrain(show, "a").failure.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(JudgeDrain(show, "z").failure.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(JudgeDrain(show, "z").failure.message(), HasSubstr("'z'"));
}

TEST(ProgressText, ShowsABarOfBytesOrAMarkThatWanders) {
  ChangeProgress progress = JudgeChange(ShowOf(4, PLACEMENT_STATE_STAGING), 4);
  EXPECT_THAT(ProgressText(progress, 0),
              HasSubstr("[######..................]  25% version 4"));
  progress.bytes_total = 0;
  EXPECT_NE(ProgressText(progress, 0), ProgressText(progress, 1));
}

}  // namespace
}  // namespace trunkline::cli
