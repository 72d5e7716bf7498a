// The whole trunk worker in one process: the API as a client sees it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "absl/strings/str_cat.h"
#include "tests/trunk_worker/http_get.h"
#include "tests/trunk_worker/server_fixture.h"

namespace trunkline::trunk {
namespace {

using ::testing::HasSubstr;

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
  EXPECT_EQ(model.self_check_digest(), "11cabf8658d053f8");
  ASSERT_EQ(model.moe_layers_size(), 4);
  EXPECT_EQ(model.moe_layers(0).experts(), 32u);
  EXPECT_EQ(model.moe_layers(0).top_k(), 4u);
  EXPECT_EQ(model.sequence_slots(), 64u);
  EXPECT_GT(model.state_bytes_total(), 0u);
  ASSERT_EQ(model.eos_token_ids_size(), 1);
  EXPECT_EQ(model.eos_token_ids(0), 2);
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

TEST_F(ServerTest, ValidateRoutesLooksAtEachMoeLayerOfEachStep) {
  TrunkOptions options = DemoOptions();
  options.metrics_listen = "127.0.0.1:0";
  options.validate_routes = true;
  StartServer(options);
  ASSERT_TRUE(Unary(Greedy("In the beginning", 10)).status.ok());
  const std::string page =
      trunkline::testing::HttpGet(server_->metrics_address(), "/metrics");
  const auto at = page.find("\ntrunkline_steps_total ");
  ASSERT_NE(at, std::string::npos);
  const int steps = std::stoi(page.substr(at + 23));
  EXPECT_GE(steps, 10);
  EXPECT_THAT(page,
              HasSubstr(absl::StrCat("trunkline_route_layers_validated_total ",
                                     4 * steps, "\n")));
  EXPECT_THAT(page, HasSubstr("trunkline_route_contracts_broken_total{contract="
                              "\"combine\"} 0\n"));
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

}  // namespace
}  // namespace trunkline::trunk
