// The generation service of a cluster of real processes: bad requests, floods,
// cancels, deadlines.

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "common/random.h"
#include "tests/integration/completion.h"
#include "tests/integration/eventually.h"
#include "tests/integration/process_cluster.h"

namespace trunkline::testing {
namespace {

class DemoCluster : public ::testing::Test {
 protected:
  void Start(ProcessCluster::Options options) {
    options.model = std::string(TRUNKLINE_SOURCE_DIR) + "/models/demo";
    auto cluster = ProcessCluster::Start(options);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
    stub_ = cluster_->NewStub();
  }
  void TearDown() override {
    if (HasFailure() && cluster_ != nullptr) std::cerr << cluster_->Logs();
  }

  std::unique_ptr<ProcessCluster> cluster_;
  std::unique_ptr<v1::Generation::Stub> stub_;
};

TEST_F(DemoCluster, EveryBadRequestIsRefusedByFieldAndTheServerKeepsServing) {
  Start({.experts = 2});
  struct Case {
    std::string names;
    std::function<void(v1::GenerateRequest&)> edit;
  };
  const std::vector<Case> cases = {
      {"prompt", [](auto& r) { r.clear_text(); }},
      {"prompt",
       [](auto& r) {
         r.set_text("");
         r.set_add_special_tokens(false);
       }},
      {"tokens", [](auto& r) { r.mutable_tokens()->add_ids(1 << 20); }},
      {"tokens", [](auto& r) { r.mutable_tokens()->add_ids(-1); }},
      {"temperature",
       [](auto& r) { r.mutable_sampling()->set_temperature(-0.5f); }},
      {"temperature",
       [](auto& r) {
         r.mutable_sampling()->set_temperature(
             std::numeric_limits<float>::quiet_NaN());
       }},
      {"top_k", [](auto& r) { r.mutable_sampling()->set_top_k(-3); }},
      {"top_p", [](auto& r) { r.mutable_sampling()->set_top_p(0.0f); }},
      {"top_p", [](auto& r) { r.mutable_sampling()->set_top_p(1.5f); }},
      {"min_p", [](auto& r) { r.mutable_sampling()->set_min_p(1.0f); }},
      {"repetition_penalty",
       [](auto& r) { r.mutable_sampling()->set_repetition_penalty(0.0f); }},
      {"presence_penalty",
       [](auto& r) { r.mutable_sampling()->set_presence_penalty(9.0f); }},
      {"logprobs", [](auto& r) { r.set_logprobs(21); }},
      {"stop", [](auto& r) { r.add_stop(""); }},
      {"stop_token_ids", [](auto& r) { r.add_stop_token_ids(1 << 20); }},
      {"max_tokens", [](auto& r) { r.set_max_tokens(100000000); }},
  };
  for (const Case& c : cases) {
    v1::GenerateRequest request = GreedyRequest("In the beginning", 4);
    c.edit(request);
    const Completion refused = Stream(*stub_, request);
    EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT)
        << c.names << ": " << refused.status.error_message();
    EXPECT_NE(refused.status.error_message().find(c.names), std::string::npos)
        << c.names << " is not named: " << refused.status.error_message();
  }
  const Completion good = Stream(*stub_, GreedyRequest("In the beginning", 4));
  EXPECT_TRUE(good.status.ok()) << good.status.error_message();
  EXPECT_EQ(good.ids.size(), 4u);
}

TEST_F(DemoCluster,
       SixtyFourStreamsWithCancelsAndDeadlinesGiveTheTextsOfEachAlone) {
  Start({.experts = 2,
         .trunk_flags = {"--max-sequences", "16", "--queue", "128"}});
  constexpr uint32_t kTokens = 32;
  std::map<std::string, Completion> alone;
  for (const char* prompt : kDemoPrompts) {
    alone[prompt] = Stream(*stub_, GreedyRequest(prompt, kTokens));
    ASSERT_TRUE(alone[prompt].status.ok())
        << alone[prompt].status.error_message();
    ASSERT_EQ(alone[prompt].ids.size(), kTokens);
  }
  const v1::GetModelResponse before = GetModel(*stub_);
  ASSERT_EQ(before.sequence_slots_used(), 0u);

  std::vector<Completion> results(64);
  std::vector<std::thread> clients;
  for (int i = 0; i < 64; ++i) {
    clients.emplace_back([&, i] {
      RandomStream random(static_cast<uint64_t>(i));
      const auto own_stub = cluster_->NewStub();
      const v1::GenerateRequest request =
          GreedyRequest(kDemoPrompts[i % kDemoPromptCount], kTokens);
      if (i % 4 == 1) {  // cancelled somewhere in the middle
        results[static_cast<size_t>(i)] =
            Stream(*own_stub, request, std::chrono::seconds(120),
                   static_cast<int>(random.NextBelow(kTokens - 1)));
      } else if (i % 4 == 3) {  // a deadline that may or may not be met
        results[static_cast<size_t>(i)] =
            Stream(*own_stub, request,
                   std::chrono::milliseconds(1 + random.NextBelow(400)));
      } else {
        results[static_cast<size_t>(i)] = Stream(*own_stub, request);
      }
    });
  }
  for (std::thread& client : clients) client.join();

  for (int i = 0; i < 64; ++i) {
    const Completion& got = results[static_cast<size_t>(i)];
    const Completion& expected = alone[kDemoPrompts[i % kDemoPromptCount]];
    if (got.status.ok()) {
      EXPECT_EQ(got.text, expected.text) << "stream " << i;
      EXPECT_EQ(got.ids, expected.ids) << "stream " << i;
    } else {
      EXPECT_NE(i % 2, 0) << "stream " << i
                          << " was left alone: " << got.status.error_message();
      EXPECT_TRUE(got.status.error_code() == grpc::StatusCode::CANCELLED ||
                  got.status.error_code() ==
                      grpc::StatusCode::DEADLINE_EXCEEDED)
          << got.status.error_code() << " " << got.status.error_message();
      // What did arrive is a prefix of the whole.
      EXPECT_EQ(expected.text.compare(0, got.text.size(), got.text), 0)
          << "stream " << i;
    }
  }
  v1::GetModelResponse after;
  EXPECT_TRUE(Eventually(std::chrono::seconds(20), [&] {
    after = GetModel(*stub_);
    return after.sequence_slots_used() == 0 &&
           after.state_bytes_used() == before.state_bytes_used() &&
           after.queued_requests() == 0;
  })) << after.ShortDebugString();
}

TEST_F(DemoCluster, AFullServerSaysSoOrLetsWait) {
  Start(
      {.experts = 1, .trunk_flags = {"--max-sequences", "1", "--queue", "1"}});
  // One long stream holds the only slot.
  grpc::ClientContext context;
  auto reader =
      stub_->GenerateStream(&context, GreedyRequest("In the beginning", 4000));
  v1::GenerateChunk chunk;
  if (!reader->Read(&chunk)) FAIL() << reader->Finish().error_message();
  v1::GenerateRequest impatient = GreedyRequest("Blessed are the", 4);
  impatient.set_wait_for_capacity(false);
  EXPECT_EQ(Stream(*stub_, impatient).status.error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  // A patient one waits, and is served when the slot is free.
  std::thread patient([&] {
    const auto own_stub = cluster_->NewStub();
    const Completion waited =
        Stream(*own_stub, GreedyRequest("Blessed are the", 4));
    EXPECT_TRUE(waited.status.ok()) << waited.status.error_message();
  });
  EXPECT_TRUE(Eventually(std::chrono::seconds(10), [&] {
    return GetModel(*stub_).queued_requests() == 1;
  }));
  context.TryCancel();
  while (reader->Read(&chunk)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  patient.join();
}

TEST_F(DemoCluster, ALostExpertWorkerIsATypedErrorAndServiceComesBackWithIt) {
  // Less patience than the coordinator needs to place its experts elsewhere.
  Start({.experts = 2, .trunk_flags = {"--unready-patience", "1s"}});
  const Completion before =
      Stream(*stub_, GreedyRequest("In the beginning", 16));
  ASSERT_TRUE(before.status.ok()) << before.status.error_message();

  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::seconds(60));
  auto reader =
      stub_->GenerateStream(&context, GreedyRequest("In the beginning", 4000));
  v1::GenerateChunk chunk;
  ASSERT_TRUE(reader->Read(&chunk));
  cluster_->expert(1).Signal(SIGKILL);
  while (reader->Read(&chunk)) {
  }
  const grpc::Status lost = reader->Finish();
  EXPECT_EQ(lost.error_code(), grpc::StatusCode::UNAVAILABLE)
      << lost.error_message();
  for (const char* part : {"expert-1", "layer", "expert"}) {
    EXPECT_NE(lost.error_message().find(part), std::string::npos)
        << lost.error_message();
  }
  cluster_->RestartExpert(1);
  Completion after;
  EXPECT_TRUE(Eventually(std::chrono::seconds(30), [&] {
    after = Stream(*stub_, GreedyRequest("In the beginning", 16),
                   std::chrono::seconds(10));
    return after.status.ok();
  })) << after.status.error_message();
  EXPECT_EQ(after.text, before.text);
}

TEST_F(DemoCluster, WithTwoReplicasAKilledExpertWorkerChangesNoText) {
  Start({.experts = 3, .replicas = 2});
  const Completion undisturbed =
      Stream(*stub_, GreedyRequest("And it came to pass", 400));
  ASSERT_TRUE(undisturbed.status.ok()) << undisturbed.status.error_message();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::seconds(60));
  auto reader = stub_->GenerateStream(
      &context, GreedyRequest("And it came to pass", 400));
  v1::GenerateChunk chunk;
  std::string text;
  size_t tokens = 0;
  while (reader->Read(&chunk)) {
    text += chunk.text();
    const size_t now = tokens + static_cast<size_t>(chunk.token_ids_size());
    if (tokens < 50 && now >= 50) cluster_->expert(0).Signal(SIGKILL);
    tokens = now;
  }
  const grpc::Status status = reader->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(text, undisturbed.text);
}

}  // namespace
}  // namespace trunkline::testing
