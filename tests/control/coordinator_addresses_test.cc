// Whom to ask when the one that was asked does not lead or does not answer.

#include "control/coordinator_addresses.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "common/random.h"
#include "control/status_to_grpc.h"

namespace trunkline::control {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

absl::Status NotLeading(const std::string& leader) {
  absl::Status status = absl::UnavailableError("does not lead");
  SetNotLeading(leader, &status);
  return status;
}

TEST(CoordinatorAddresses, AListIsOfAddressesThatCanBeDialled) {
  EXPECT_THAT(*ParseCoordinatorAddresses("a:1"), ElementsAre("a:1"));
  EXPECT_THAT(*ParseCoordinatorAddresses("a:1,b:2,a:1"),
              ElementsAre("a:1", "b:2"));
  for (const char* text : {"", "a", "a:1,", "a:1,,b:2", "a:0", ":5", "a:x"}) {
    EXPECT_EQ(ParseCoordinatorAddresses(text).status().code(),
              absl::StatusCode::kInvalidArgument)
        << text;
  }
  EXPECT_THAT(
      std::string(ParseCoordinatorAddresses("a:1,b").status().message()),
      HasSubstr("\"b\""));
}

TEST(CoordinatorAddresses, TheLeaderThatAFollowerNamesIsAskedNext) {
  CoordinatorAddresses addresses({"a:1", "b:1", "c:1"});
  EXPECT_EQ(addresses.current(), "a:1");
  EXPECT_TRUE(addresses.OnFailure(NotLeading("c:1")));
  EXPECT_EQ(addresses.current(), "c:1");
  addresses.OnSuccess();
  EXPECT_EQ(addresses.current(), "c:1");
  EXPECT_TRUE(addresses.OnFailure(NotLeading("d:9")));
  EXPECT_EQ(addresses.current(), "d:9");
}

TEST(CoordinatorAddresses, TheLeadersOwnAnswerIsNoReasonToAskAnother) {
  CoordinatorAddresses addresses({"a:1", "b:1"});
  for (const absl::Status& status :
       {absl::NotFoundError(""), absl::FailedPreconditionError(""),
        absl::ResourceExhaustedError("")}) {
    EXPECT_FALSE(addresses.OnFailure(status));
    EXPECT_EQ(addresses.current(), "a:1");
  }
  CoordinatorAddresses alone({"a:1"});
  EXPECT_FALSE(alone.OnFailure(absl::UnavailableError("")));
  EXPECT_EQ(alone.current(), "a:1");
}

TEST(CoordinatorAddresses, ANameThatCanNotBeDialledIsNotFollowed) {
  CoordinatorAddresses addresses({"a:1", "b:1"});
  addresses.OnFailure(NotLeading("no address"));
  EXPECT_EQ(addresses.current(), "b:1");
}

// Whatever followers believe about who leads, the one that does lead is asked
// within a few rounds.
TEST(CoordinatorAddresses, WrongNamesHideTheLeaderFromNobody) {
  RandomStream random(7);
  for (int round = 0; round < 500; ++round) {
    const std::vector<std::string> all = {"a:1", "b:1", "c:1"};
    const std::string leader = all[random.NextBelow(3)];
    const std::string believed =
        random.NextBelow(4) == 0 ? "gone:1" : all[random.NextBelow(3)];
    CoordinatorAddresses addresses(all);
    int asked = 0;
    while (addresses.current() != leader) {
      ASSERT_LT(++asked, 12) << leader << " while they name " << believed;
      const bool answers =
          addresses.current() != believed && addresses.current() != "gone:1";
      addresses.OnFailure(answers ? NotLeading(believed)
                                  : absl::UnavailableError("refused"));
    }
  }
}

TEST(StatusToGrpc, TheLeadersNameTravelsWithTheStatus) {
  const absl::Status status = NotLeading("10.0.0.1:7070");
  const grpc::Status wire = ToGrpc(status);
  EXPECT_EQ(wire.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(wire.error_message(), "does not lead");
  const absl::Status back = FromGrpc(wire);
  EXPECT_EQ(back.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(LeaderIn(back), "10.0.0.1:7070");
  EXPECT_TRUE(IsNotLeading(back));
  EXPECT_TRUE(IsNotLeading(FromGrpc(ToGrpc(NotLeading("")))));
  EXPECT_FALSE(IsNotLeading(FromGrpc(ToGrpc(absl::UnavailableError("x")))));
  EXPECT_FALSE(IsNotLeading(FromGrpc(
      grpc::Status(grpc::StatusCode::UNAVAILABLE, "x", "\xff no details"))));
}

}  // namespace
}  // namespace trunkline::control
