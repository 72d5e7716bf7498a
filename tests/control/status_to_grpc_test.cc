#include "control/status_to_grpc.h"

#include <gtest/gtest.h>

#include "proto/generation.pb.h"

namespace trunkline::control {
namespace {

TEST(StatusToGrpc, EveryCodeAndMessageComesBack) {
  for (int code = 0; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "why");
    EXPECT_EQ(FromGrpc(ToGrpc(status)), status);
  }
  EXPECT_EQ(
      FromGrpc(grpc::Status(static_cast<grpc::StatusCode>(31), "odd")).code(),
      absl::StatusCode::kUnknown);
}

TEST(StatusToGrpc, DetailsTravelByTheirKind) {
  absl::Status status = absl::UnavailableError("gone");
  ::trunkline::v1::StreamFailure failure;
  EXPECT_FALSE(GetDetail(status, &failure));
  EXPECT_EQ(RetryAfter(status), absl::ZeroDuration());
  failure.set_output_tokens(7);
  failure.set_resume_token(std::string("\0\x01\xff", 3));
  SetDetail(&status, failure);
  SetRetryAfter(&status, absl::Milliseconds(1500));
  const absl::Status back = FromGrpc(ToGrpc(status));
  EXPECT_EQ(back, status);
  ::trunkline::v1::StreamFailure read;
  ASSERT_TRUE(GetDetail(back, &read));
  EXPECT_EQ(read.SerializeAsString(), failure.SerializeAsString());
  EXPECT_EQ(RetryAfter(back), absl::Milliseconds(1500));
}

TEST(StatusToGrpc, DetailsThatAreNoneAreDropped) {
  const grpc::Status odd(grpc::StatusCode::UNAVAILABLE, "gone", "\xff\xff\xff");
  EXPECT_EQ(FromGrpc(odd), absl::UnavailableError("gone"));
}

}  // namespace
}  // namespace trunkline::control
