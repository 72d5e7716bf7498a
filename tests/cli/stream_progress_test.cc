#include "cli/stream_progress.h"

#include <gtest/gtest.h>

#include "control/status_to_grpc.h"

namespace trunkline::cli {
namespace {

v1::GenerateChunk Chunk(std::vector<int32_t> ids, const std::string& token) {
  v1::GenerateChunk chunk;
  chunk.mutable_token_ids()->Add(ids.begin(), ids.end());
  chunk.set_resume_token(token);
  return chunk;
}

v1::GenerateRequest Request() {
  v1::GenerateRequest request;
  request.set_text("hello");
  return request;
}

TEST(StreamProgress, GoesOnBehindTheLastChunkWithAllThatArrived) {
  StreamProgress progress(Request());
  EXPECT_FALSE(progress.request().has_resume());
  progress.Take(Chunk({1, 2}, "a"));
  progress.Take(Chunk({3}, "b"));
  ASSERT_TRUE(progress.MayGoOn(absl::UnavailableError("gone")));
  EXPECT_EQ(progress.request().text(), "hello");
  EXPECT_EQ(progress.request().resume().token(), "b");
  EXPECT_EQ(progress.request().resume().token_ids_size(), 3);
  EXPECT_EQ(progress.tokens(), 3);
}

TEST(StreamProgress, BeginsAnewWhenNothingHasArrived) {
  StreamProgress progress(Request());
  ASSERT_TRUE(progress.MayGoOn(absl::ResourceExhaustedError("full")));
  EXPECT_FALSE(progress.request().has_resume());
}

// The server chose a seed before it failed: the failure's token keeps it.
TEST(StreamProgress, TakesTheFailuresTokenWhenItCoversWhatArrived) {
  StreamProgress progress(Request());
  absl::Status status = absl::UnavailableError("stopping");
  v1::StreamFailure failure;
  failure.set_resume_token("start");
  control::SetDetail(&status, failure);
  ASSERT_TRUE(progress.MayGoOn(status));
  EXPECT_EQ(progress.request().resume().token(), "start");
  progress.Take(Chunk({1}, "one"));
  ASSERT_TRUE(progress.MayGoOn(status));  // covers less than has arrived
  EXPECT_EQ(progress.request().resume().token(), "one");
}

TEST(StreamProgress, OtherErrorsAndServersWithoutTokensEndIt) {
  StreamProgress progress(Request());
  EXPECT_FALSE(progress.MayGoOn(absl::InvalidArgumentError("bad")));
  EXPECT_FALSE(progress.MayGoOn(absl::DeadlineExceededError("late")));
  progress.Take(Chunk({1}, ""));
  EXPECT_FALSE(progress.MayGoOn(absl::UnavailableError("gone")));
}

}  // namespace
}  // namespace trunkline::cli
