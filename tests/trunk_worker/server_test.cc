// The whole trunk worker in one process: the API as a client sees it.

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <limits>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/random.h"
#include "proto/generation.grpc.pb.h"
#include "tests/golden/checkpoint_fixture.h"
#include "tests/integration/eventually.h"
#include "tests/trunk_worker/http_get.h"
#include "trunk_worker/trunk_server.h"

namespace trunkline::trunk {
namespace {

using ::testing::HasSubstr;
using trunkline::testing::DemoFixture;
using trunkline::testing::Eventually;

TrunkOptions DemoOptions() {
  TrunkOptions options;
  options.model_dir = DemoFixture().checkpoint;
  options.threads = 1;
  options.sequence_tokens_max = 2048;
  options.log_level = "error";
  return options;
}

v1::GenerateRequest Greedy(const std::string& text, uint32_t max_tokens) {
  v1::GenerateRequest request;
  request.set_text(text);
  request.set_max_tokens(max_tokens);
  request.set_ignore_eos(true);
  request.set_add_special_tokens(true);
  request.mutable_sampling()->set_temperature(0.0f);
  return request;
}

struct Result {
  grpc::Status status;
  v1::GenerateResponse all;
  int chunks = 0;
};

class ServerTest : public ::testing::Test {
 protected:
  void StartServer(const TrunkOptions& options = DemoOptions()) {
    auto server = TrunkServer::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = NewStub();
  }
  std::shared_ptr<grpc::Channel> NewChannel() {
    grpc::ChannelArguments arguments;
    arguments.SetInt("grpc.use_local_subchannel_pool", 1);
    // A small fixed window, so that a client that does not read is felt soon.
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 16384);
    return grpc::CreateCustomChannel(
        server_->address(), grpc::InsecureChannelCredentials(), arguments);
  }
  std::unique_ptr<v1::Generation::Stub> NewStub() {
    return v1::Generation::NewStub(NewChannel());
  }
  static void SetDeadline(grpc::ClientContext& context,
                          std::chrono::milliseconds deadline) {
    context.set_deadline(std::chrono::system_clock::now() + deadline);
  }
  // cancel_after: tokens; negative: never.
  Result Stream(v1::Generation::Stub& stub, const v1::GenerateRequest& request,
                std::chrono::milliseconds deadline = std::chrono::seconds(60),
                int cancel_after = -1) {
    Result result;
    grpc::ClientContext context;
    SetDeadline(context, deadline);
    auto reader = stub.GenerateStream(&context, request);
    v1::GenerateChunk chunk;
    while (reader->Read(&chunk)) {
      ++result.chunks;
      AppendToResponse(chunk, &result.all);
      if (chunk.seed() != 0) result.all.set_seed(chunk.seed());
      if (!chunk.request_id().empty())
        result.all.set_request_id(chunk.request_id());
      if (cancel_after >= 0 && result.all.token_ids_size() >= cancel_after)
        context.TryCancel();
    }
    result.status = reader->Finish();
    return result;
  }
  Result Unary(const v1::GenerateRequest& request) {
    Result result;
    grpc::ClientContext context;
    SetDeadline(context, std::chrono::seconds(60));
    result.status = stub_->Generate(&context, request, &result.all);
    return result;
  }
  v1::GetModelResponse Model() {
    grpc::ClientContext context;
    v1::GetModelResponse model;
    EXPECT_TRUE(stub_->GetModel(&context, {}, &model).ok());
    return model;
  }
  bool EverythingIsFree() {
    return Eventually(std::chrono::seconds(20), [&] {
      const v1::GetModelResponse model = Model();
      return model.sequence_slots_used() == 0 &&
             model.state_bytes_used() == 0 && model.queued_requests() == 0;
    });
  }
  // The health service's answer, read from the bytes: field 1, 1 = SERVING.
  int Health(const std::string& service) {
    grpc::GenericStub generic(NewChannel());
    grpc::CompletionQueue queue;
    grpc::ClientContext context;
    SetDeadline(context, std::chrono::seconds(10));
    std::string request;
    if (!service.empty())
      request = absl::StrCat("\x0a", std::string(1, service.size()), service);
    const grpc::Slice slice(request);
    auto call =
        generic.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check",
                                 grpc::ByteBuffer(&slice, 1), &queue);
    call->StartCall();
    grpc::ByteBuffer answer;
    grpc::Status status;
    call->Finish(&answer, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    if (!status.ok()) return -static_cast<int>(status.error_code());
    std::vector<grpc::Slice> slices;
    EXPECT_TRUE(answer.Dump(&slices).ok());
    if (slices.empty() || slices[0].size() != 2) return 0;
    return slices[0].begin()[1];
  }

  std::unique_ptr<TrunkServer> server_;
  std::unique_ptr<v1::Generation::Stub> stub_;
};

TEST_F(ServerTest, StreamAndUnaryGiveTheSameTextWithUsageAndSeed) {
  StartServer();
  v1::GenerateRequest request = Greedy("And the LORD spake unto Moses,", 24);
  request.set_logprobs(2);
  request.set_prompt_logprobs(true);
  request.set_request_id("mine");
  const Result streamed = Stream(*stub_, request);
  ASSERT_TRUE(streamed.status.ok()) << streamed.status.error_message();
  EXPECT_GT(streamed.chunks, 1);
  const Result whole = Unary(request);
  ASSERT_TRUE(whole.status.ok()) << whole.status.error_message();
  EXPECT_EQ(whole.all.text(), streamed.all.text());
  EXPECT_EQ(whole.all.token_ids_size(), 24);
  EXPECT_EQ(whole.all.logprobs_size(), 24);
  EXPECT_EQ(whole.all.logprobs(0).top_size(), 2);
  EXPECT_EQ(whole.all.prompt_logprobs_size(),
            static_cast<int>(whole.all.usage().prompt_tokens()) - 1);
  EXPECT_EQ(whole.all.finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(whole.all.usage().output_tokens(), 24u);
  EXPECT_EQ(whole.all.request_id(), "mine");
  EXPECT_NE(whole.all.seed(), 0u);
  EXPECT_EQ(streamed.all.request_id(), "mine");
  // The texts of the tokens are the text.
  std::string joined;
  for (const auto& l : whole.all.logprobs()) joined += l.chosen().token();
  EXPECT_EQ(joined, whole.all.text());
}

TEST_F(ServerTest, ASampledTextIsRepeatedByItsSeedAndDefaultsAreTheModels) {
  StartServer();
  v1::GenerateRequest request = Greedy("In the beginning", 40);
  request.clear_sampling();  // generation_config.json: do_sample, 0.8, 0.95
  const Result one = Unary(request);
  const Result two = Unary(request);
  ASSERT_TRUE(one.status.ok() && two.status.ok());
  EXPECT_NE(one.all.text(), two.all.text());
  EXPECT_NE(one.all.seed(), two.all.seed());
  request.mutable_sampling()->set_seed(one.all.seed());
  EXPECT_EQ(Unary(request).all.text(), one.all.text());
  request.mutable_sampling()->set_temperature(0.8f);
  request.mutable_sampling()->set_top_p(0.95f);
  EXPECT_EQ(Unary(request).all.text(), one.all.text());
}

TEST_F(ServerTest, BadRequestsAreRefusedByFieldAndTheServerKeepsServing) {
  StartServer();
  struct Case {
    std::string names;
    std::function<void(v1::GenerateRequest&)> edit;
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<Case> cases = {
      {"prompt is not set", [](auto& r) { r.clear_text(); }},
      {"prompt text",
       [](auto& r) {
         r.set_text("");
         r.set_add_special_tokens(false);
       }},
      {"tokens.ids is empty", [](auto& r) { r.mutable_tokens(); }},
      {"tokens.ids[0] is 1048576",
       [](auto& r) { r.mutable_tokens()->add_ids(1 << 20); }},
      {"tokens.ids[0] is -1", [](auto& r) { r.mutable_tokens()->add_ids(-1); }},
      {"temperature is -0.5",
       [](auto& r) { r.mutable_sampling()->set_temperature(-0.5f); }},
      {"temperature is nan",
       [=](auto& r) { r.mutable_sampling()->set_temperature(nan); }},
      {"top_k is -3", [](auto& r) { r.mutable_sampling()->set_top_k(-3); }},
      {"top_p is 0", [](auto& r) { r.mutable_sampling()->set_top_p(0.0f); }},
      {"top_p is 1.5", [](auto& r) { r.mutable_sampling()->set_top_p(1.5f); }},
      {"min_p is 1", [](auto& r) { r.mutable_sampling()->set_min_p(1.0f); }},
      {"repetition_penalty is 0",
       [](auto& r) { r.mutable_sampling()->set_repetition_penalty(0.0f); }},
      {"presence_penalty is 9",
       [](auto& r) { r.mutable_sampling()->set_presence_penalty(9.0f); }},
      {"logprobs is 21", [](auto& r) { r.set_logprobs(21); }},
      {"stop[0] is empty", [](auto& r) { r.add_stop(""); }},
      {"stop[0] has 1025", [](auto& r) { r.add_stop(std::string(1025, 'x')); }},
      {"stop has 65",
       [](auto& r) {
         for (int i = 0; i < 65; ++i) r.add_stop("x");
       }},
      {"stop_token_ids[0] is 1048576",
       [](auto& r) { r.add_stop_token_ids(1 << 20); }},
      {"max_tokens is 100000000", [](auto& r) { r.set_max_tokens(100000000); }},
      {"max_tokens 2048", [](auto& r) { r.set_max_tokens(2048); }},
  };
  for (const Case& c : cases) {
    v1::GenerateRequest request = Greedy("In the beginning", 4);
    c.edit(request);
    for (const Result& refused : {Stream(*stub_, request), Unary(request)}) {
      EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT)
          << c.names << ": " << refused.status.error_message();
      EXPECT_THAT(refused.status.error_message(), HasSubstr(c.names));
    }
  }
  EXPECT_TRUE(Unary(Greedy("In the beginning", 4)).status.ok());
  EXPECT_TRUE(EverythingIsFree());
}

TEST_F(ServerTest, TokenizeAndDetokenizeAreInverseAndChecked) {
  StartServer();
  const std::string text = "Blessed are the meek: for they shall inherit";
  grpc::ClientContext one, two, three;
  v1::TokenizeRequest tokenize;
  tokenize.set_text(text);
  v1::TokenizeResponse ids;
  ASSERT_TRUE(stub_->Tokenize(&one, tokenize, &ids).ok());
  v1::DetokenizeRequest detokenize;
  *detokenize.mutable_ids() = ids.ids();
  v1::DetokenizeResponse back;
  ASSERT_TRUE(stub_->Detokenize(&two, detokenize, &back).ok());
  EXPECT_EQ(back.text(), text);
  detokenize.add_ids(-7);
  const grpc::Status bad = stub_->Detokenize(&three, detokenize, &back);
  EXPECT_EQ(bad.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(bad.error_message(), HasSubstr("is -7"));
}

TEST_F(ServerTest, GetModelSaysWhatIsServed) {
  StartServer();
  const v1::GetModelResponse model = Model();
  EXPECT_EQ(model.name(), "demo");
  EXPECT_EQ(model.layer_pattern(), "MEM*EMEM*E");
  EXPECT_EQ(model.vocab_size(), 2048u);
  EXPECT_EQ(model.max_sequence_tokens(), 2048u);
  EXPECT_EQ(model.activation_dtype(), "BF16");
  EXPECT_EQ(model.numerics_class(), "portable");
  ASSERT_EQ(model.moe_layers_size(), 4);
  EXPECT_EQ(model.moe_layers(0).experts(), 32u);
  EXPECT_EQ(model.moe_layers(0).top_k(), 4u);
  EXPECT_EQ(model.sequence_slots(), 64u);
  EXPECT_GT(model.state_bytes_total(), 0u);
  ASSERT_EQ(model.eos_token_ids_size(), 1);
  EXPECT_EQ(model.eos_token_ids(0), 2);
}

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

TEST_F(ServerTest, MetricsCountRequestsTokensAndRoutes) {
  TrunkOptions options = DemoOptions();
  options.metrics_listen = "127.0.0.1:0";
  StartServer(options);
  ASSERT_TRUE(Unary(Greedy("In the beginning", 10)).status.ok());
  v1::GenerateRequest bad = Greedy("x", 1);
  bad.set_logprobs(99);
  Unary(bad);
  const std::string page =
      trunkline::testing::HttpGet(server_->metrics_address(), "/metrics");
  EXPECT_THAT(page, HasSubstr("trunkline_requests_total{code=\"OK\"} 1\n"));
  EXPECT_THAT(page,
              HasSubstr("trunkline_requests_total{code=\"INVALID_ARGUMENT\"} "
                        "1\n"));
  EXPECT_THAT(page, HasSubstr("trunkline_output_tokens_total 10\n"));
  // 4 routes a row in each of 4 moe layers: prompt rows and 9 decode rows.
  const auto model_rows = page.find("\ntrunkline_step_rows_total ");
  ASSERT_NE(model_rows, std::string::npos);
  const int rows = std::stoi(page.substr(model_rows + 27));
  EXPECT_THAT(page, HasSubstr(absl::StrCat("trunkline_routes_accepted_total ",
                                           16 * rows, "\n")));
  EXPECT_THAT(page, HasSubstr(absl::StrCat("trunkline_routes_combined_total ",
                                           16 * rows, "\n")));
}

TEST(TrunkServerStart, FaultsOfTheStartAreNamed) {
  TrunkOptions options = DemoOptions();
  options.model_dir = "/no/such/model";
  EXPECT_THAT(TrunkServer::Start(options).status().message(),
              HasSubstr("/no/such/model"));
  options = DemoOptions();
  auto first = TrunkServer::Start(options);
  ASSERT_TRUE(first.ok());
  options.listen = (*first)->address();
  const auto taken = TrunkServer::Start(options);
  EXPECT_EQ(taken.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(taken.status().message(), HasSubstr(options.listen));
}

TEST(TrunkOptions, EachBadFlagIsNamedWithItsValue) {
  const std::vector<std::pair<std::function<void(TrunkOptions&)>, std::string>>
      cases = {
          {[](auto& o) { o.model_dir = ""; }, "--model"},
          {[](auto& o) { o.coordinator = "nowhere"; }, "nowhere"},
          {[](auto& o) { o.listen = "127.0.0.1:70000"; }, "70000"},
          {[](auto& o) { o.transport = "pigeon"; }, "pigeon"},
          {[](auto& o) { o.threads = -1; }, "--threads is \"-1\""},
          {[](auto& o) { o.cores = {-4}; }, "--cores is \"-4\""},
          {[](auto& o) { o.simd = "mmx"; }, "mmx"},
          {[](auto& o) { o.sequences_max = 0; }, "--max-sequences is \"0\""},
          {[](auto& o) { o.sequence_tokens_max = -2; },
           "--max-sequence-tokens"},
          {[](auto& o) { o.state_memory_bytes = -1; }, "--state-memory"},
          {[](auto& o) { o.queue_max = -1; }, "--queue"},
          {[](auto& o) { o.rows_per_step = 1; }, "--rows-per-step is \"1\""},
          {[](auto& o) { o.prefill_chunk = 0; }, "--prefill-chunk"},
          {[](auto& o) { o.request_time_max = absl::ZeroDuration(); },
           "--request-time-max"},
          {[](auto& o) { o.unready_patience = -absl::Seconds(1); },
           "--unready-patience"},
          {[](auto& o) { o.worker_deadline = absl::ZeroDuration(); },
           "--worker-deadline"},
          {[](auto& o) { o.exchange_deadline = absl::ZeroDuration(); },
           "--exchange-deadline"},
          {[](auto& o) { o.stream_buffer_bytes = 1; }, "--stream-buffer"},
          {[](auto& o) { o.metrics_listen = "x"; }, "--metrics-listen"},
          {[](auto& o) { o.log_level = "loud"; }, "loud"},
      };
  for (const auto& [edit, message] : cases) {
    TrunkOptions options = DemoOptions();
    edit(options);
    const absl::Status status = options.Validate();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_THAT(status.message(), HasSubstr(message));
  }
  EXPECT_TRUE(DemoOptions().Validate().ok());
}

}  // namespace
}  // namespace trunkline::trunk
