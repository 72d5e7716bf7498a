// Full servers, deaf clients, deadlines, shutdown: what a client of a busy or
// ending server sees.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "common/random.h"
#include "tests/integration/eventually.h"
#include "tests/trunk_worker/server_fixture.h"

namespace trunkline::trunk {
namespace {

using ::testing::HasSubstr;
using trunkline::Eventually;

TEST_F(ServerTest, AFullServerRefusesOrLetsWait) {
  TrunkOptions options = DemoOptions();
  options.sequences_max = 1;
  options.queue_max = 1;
  StartServer(options);
  grpc::ClientContext context;
  auto reader = stub_->GenerateStream(&context, Greedy("Now", 2000));
  v1::GenerateChunk chunk;
  ASSERT_TRUE(reader->Read(&chunk));
  EXPECT_EQ(Unary(Greedy("Now", 4)).status.error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  v1::GenerateRequest patient = Greedy("Now", 4);
  patient.set_wait_for_capacity(true);
  std::thread waiter([&] {
    const auto stub = NewStub();
    EXPECT_TRUE(Stream(*stub, patient).status.ok());
  });
  EXPECT_TRUE(Eventually(std::chrono::seconds(10),
                         [&] { return Model().queued_requests() == 1; }));
  const Result overflow = Stream(*stub_, patient);
  EXPECT_EQ(overflow.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(overflow.status.error_message(), HasSubstr("queue is full"));
  context.TryCancel();
  waiter.join();
  EXPECT_TRUE(EverythingIsFree());
}

TEST_F(ServerTest, DeadlinesAndCancelsFreeTheirSlots) {
  StartServer();
  const Result late =
      Stream(*stub_, Greedy("Now", 2000), std::chrono::milliseconds(60));
  EXPECT_EQ(late.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  const Result cancelled =
      Stream(*stub_, Greedy("Now", 2000), std::chrono::seconds(60), 5);
  EXPECT_EQ(cancelled.status.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(EverythingIsFree());
}

TEST_F(ServerTest, TheServersOwnTimeLimitEndsARequest) {
  TrunkOptions options = DemoOptions();
  options.request_time_max = absl::Milliseconds(50);
  StartServer(options);
  const Result late = Stream(*stub_, Greedy("Now", 2000));
  EXPECT_EQ(late.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(late.status.error_message(), HasSubstr("deadline"));
}

// The server makes tokens faster than nobody reads them: the buffer has a
// bound, and the request ends when it is reached.
TEST_F(ServerTest, AClientThatDoesNotReadLosesItsRequestNotTheServersMemory) {
  TrunkOptions options = DemoOptions();
  options.stream_buffer_bytes = 16384;
  StartServer(options);
  v1::GenerateRequest request = Greedy("Now", 2000);
  request.set_logprobs(20);
  grpc::ClientContext context;
  SetDeadline(context, std::chrono::seconds(60));
  auto reader = stub_->GenerateStream(&context, request);
  ASSERT_TRUE(Eventually(std::chrono::seconds(30),
                         [&] { return Model().sequence_slots_used() == 1; }));
  const auto other = NewStub();
  EXPECT_TRUE(Stream(*other, Greedy("Blessed", 8)).status.ok());
  EXPECT_TRUE(EverythingIsFree()) << "the slot is held for a deaf client";
  v1::GenerateChunk chunk;
  int tokens = 0;
  while (reader->Read(&chunk)) tokens += chunk.token_ids_size();
  const grpc::Status end = reader->Finish();
  EXPECT_EQ(end.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED)
      << end.error_message() << " after " << tokens << " tokens";
  EXPECT_LT(tokens, 2000);
}

TEST_F(ServerTest, SixtyFourStreamsWithRandomCancelsGiveTheTextsOfEachAlone) {
  TrunkOptions options = DemoOptions();
  options.sequences_max = 16;
  StartServer(options);
  const std::vector<std::string> prompts = {
      "In the beginning God created", "Blessed are the", "Thou shalt not",
      "And it came to pass in the days of"};
  std::vector<Result> alone;
  for (const std::string& prompt : prompts)
    alone.push_back(Unary(Greedy(prompt, 24)));
  std::vector<Result> results(64);
  std::vector<std::thread> clients;
  for (size_t i = 0; i < results.size(); ++i) {
    clients.emplace_back([&, i] {
      RandomStream random(i);
      const auto stub = NewStub();
      v1::GenerateRequest request = Greedy(prompts[i % 4], 24);
      request.set_wait_for_capacity(true);
      const int cancel_after =
          i % 3 == 1 ? static_cast<int>(random.NextBelow(20)) : -1;
      const auto deadline =
          i % 3 == 2 ? std::chrono::milliseconds(1 + random.NextBelow(300))
                     : std::chrono::milliseconds(60000);
      results[i] = Stream(*stub, request, deadline, cancel_after);
    });
  }
  for (std::thread& client : clients) client.join();
  for (size_t i = 0; i < results.size(); ++i) {
    const std::string& whole = alone[i % 4].all.text();
    if (results[i].status.ok()) {
      EXPECT_EQ(results[i].all.text(), whole) << "stream " << i;
    } else {
      EXPECT_NE(i % 3, 0u) << results[i].status.error_message();
      EXPECT_EQ(whole.rfind(results[i].all.text(), 0), 0u) << "stream " << i;
    }
  }
  EXPECT_TRUE(EverythingIsFree());
}

TEST_F(ServerTest, HealthIsServingWhenReadyAndNotAfterShutdownBegins) {
  StartServer();
  EXPECT_TRUE(
      Eventually(std::chrono::seconds(10), [&] { return Health("") == 1; }));
  EXPECT_EQ(Health("trunkline.v1.Generation"), 1);
  EXPECT_EQ(Health("no.such.Service"),
            -static_cast<int>(grpc::StatusCode::NOT_FOUND));
}

TEST_F(ServerTest, ShutdownLetsAStreamFinish) {
  StartServer();
  grpc::ClientContext context;
  auto reader = stub_->GenerateStream(&context, Greedy("Now", 200));
  v1::GenerateChunk chunk;
  ASSERT_TRUE(reader->Read(&chunk));
  std::thread stopper([&] { server_->Shutdown(absl::Seconds(60)); });
  int tokens = chunk.token_ids_size();
  while (reader->Read(&chunk)) tokens += chunk.token_ids_size();
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(tokens, 200);
  stopper.join();
}

TEST_F(ServerTest, ShutdownWithoutPatienceEndsAStreamWithUnavailable) {
  StartServer();
  grpc::ClientContext context;
  auto reader = stub_->GenerateStream(&context, Greedy("Now", 2000));
  v1::GenerateChunk chunk;
  ASSERT_TRUE(reader->Read(&chunk));
  server_->Shutdown(absl::ZeroDuration());
  while (reader->Read(&chunk)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace trunkline::trunk
