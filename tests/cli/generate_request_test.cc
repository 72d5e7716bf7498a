#include "cli/generate_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace trunkline::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// "" when the command line is fine, else what the person reads.
std::string Parse(std::vector<std::string> arguments, GenerateFlags* flags) {
  CLI::App app;
  AddGenerateFlags(&app, flags);
  arguments.insert(arguments.begin(), {"--server", "h:1"});
  std::reverse(arguments.begin(), arguments.end());
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    return error.what();
  }
  return std::string(CheckGenerateFlags(*flags).message());
}

TEST(GenerateRequest, AFlagThatIsNotGivenLeavesTheModelsDefault) {
  GenerateFlags flags;
  ASSERT_EQ(Parse({"hello"}, &flags), "");
  const v1::GenerateRequest request = MakeGenerateRequest(flags, "hello");
  EXPECT_EQ(request.text(), "hello");
  const v1::SamplingParams& s = request.sampling();
  EXPECT_FALSE(s.has_temperature() || s.has_top_k() || s.has_top_p() ||
               s.has_min_p() || s.has_repetition_penalty() ||
               s.has_presence_penalty() || s.has_seed());
  EXPECT_TRUE(request.add_special_tokens());
  EXPECT_EQ(request.max_tokens(), 0u);
}

TEST(GenerateRequest, EveryFlagReachesItsField) {
  GenerateFlags flags;
  ASSERT_EQ(Parse({"--max-tokens",
                   "7",
                   "--temperature",
                   "0",
                   "--top-k",
                   "5",
                   "--top-p",
                   "0.5",
                   "--min-p",
                   "0.25",
                   "--repetition-penalty",
                   "1.5",
                   "--presence-penalty",
                   "-2",
                   "--seed",
                   "18446744073709551615",
                   "--stop",
                   "a b",
                   "--stop",
                   "c",
                   "--stop-token",
                   "3",
                   "--stop-token",
                   "4",
                   "--ignore-eos",
                   "--raw",
                   "--no-parse-special",
                   "--include-special",
                   "--logprobs",
                   "20",
                   "--prompt-logprobs",
                   "--json",
                   "--wait-for-capacity",
                   "--prompt-tokens",
                   "1,2,3"},
                  &flags),
            "");
  const v1::GenerateRequest r = MakeGenerateRequest(flags, "");
  EXPECT_THAT(
      std::vector<int>(r.tokens().ids().begin(), r.tokens().ids().end()),
      ElementsAre(1, 2, 3));
  EXPECT_EQ(r.max_tokens(), 7u);
  EXPECT_TRUE(r.sampling().has_temperature());
  EXPECT_EQ(r.sampling().temperature(), 0.0f);
  EXPECT_EQ(r.sampling().top_k(), 5);
  EXPECT_EQ(r.sampling().top_p(), 0.5f);
  EXPECT_EQ(r.sampling().min_p(), 0.25f);
  EXPECT_EQ(r.sampling().repetition_penalty(), 1.5f);
  EXPECT_EQ(r.sampling().presence_penalty(), -2.0f);
  EXPECT_EQ(r.sampling().seed(), UINT64_MAX);
  EXPECT_THAT(std::vector<std::string>(r.stop().begin(), r.stop().end()),
              ElementsAre("a b", "c"));
  EXPECT_THAT(
      std::vector<int>(r.stop_token_ids().begin(), r.stop_token_ids().end()),
      ElementsAre(3, 4));
  EXPECT_TRUE(r.ignore_eos());
  EXPECT_FALSE(r.add_special_tokens());
  EXPECT_TRUE(r.no_parse_special_tokens());
  EXPECT_TRUE(r.include_special_tokens());
  EXPECT_EQ(r.logprobs(), 20u);
  EXPECT_TRUE(r.prompt_logprobs());
  EXPECT_TRUE(r.wait_for_capacity());
}

TEST(GenerateRequest, SeveralServersAreAskedInTheOrderGiven) {
  GenerateFlags flags;
  CLI::App app;
  AddGenerateFlags(&app, &flags);
  std::vector<std::string> arguments = {"hello", "b:2,a:1", "--server"};
  app.parse(arguments);
  EXPECT_THAT(flags.servers, ElementsAre("b:2", "a:1"));
  EXPECT_EQ(flags.prompt, "hello");
  CLI::App again;
  GenerateFlags bad;
  AddGenerateFlags(&again, &bad);
  arguments = {"hello", "b:2,a", "--server"};
  EXPECT_THROW(again.parse(arguments), CLI::ParseError);
}

// A repeatable flag takes one value each time: the prompt behind it is not one.
TEST(GenerateRequest, AStopStringDoesNotSwallowThePrompt) {
  GenerateFlags flags;
  ASSERT_EQ(Parse({"--stop", "x", "the prompt"}, &flags), "");
  EXPECT_EQ(flags.prompt, "the prompt");
  EXPECT_THAT(flags.stop, ElementsAre("x"));
}

TEST(GenerateRequest, BadValuesAreNamedWithTheirFlag) {
  const std::vector<std::vector<std::string>> cases = {
      {"--max-tokens", "0"},
      {"--max-tokens", "none"},
      {"--max-tokens", "-1"},
      {"--temperature", "-1"},
      {"--temperature", "nan"},
      {"--top-k", "-1"},
      {"--top-p", "0"},
      {"--top-p", "1.5"},
      {"--min-p", "1"},
      {"--repetition-penalty", "0"},
      {"--presence-penalty", "2.5"},
      {"--seed", "-1"},
      {"--seed", "x"},
      {"--stop", ""},
      {"--stop-token", "-1"},
      {"--logprobs", "21"},
      {"--logprobs", "3"},
      {"--prompt-logprobs"},
      {"--prompt-tokens", "1,x"},
      {"--prompt-tokens", "1,2"},
      {"--wait", "soon"},
      {"--timeout", "0"},
      {"--server", "nowhere"}};
  for (const std::vector<std::string>& c : cases) {
    GenerateFlags flags;
    std::vector<std::string> arguments = c;
    arguments.push_back("prompt");
    EXPECT_THAT(Parse(arguments, &flags), HasSubstr(c[0]))
        << testing::PrintToString(c);
  }
}

TEST(GenerateRequest, TheUsageLineCountsTokensPerSecondOfDecoding) {
  v1::Usage usage;
  usage.set_prompt_tokens(11);
  usage.set_output_tokens(21);
  usage.set_prefill_seconds(0.035);
  usage.set_decode_seconds(0.5);
  EXPECT_EQ(UsageLine(usage, v1::FINISH_REASON_LENGTH, ""),
            "[21 tokens, 40.0 tok/s; prompt 11 tokens in 35 ms; end: length]");
  usage.set_queue_seconds(2);
  EXPECT_EQ(UsageLine(usage, v1::FINISH_REASON_STOP, "END"),
            "[21 tokens, 40.0 tok/s; prompt 11 tokens in 35 ms after 2.0 s in "
            "the queue; end: stop at \"END\"]");
}

}  // namespace
}  // namespace trunkline::cli
