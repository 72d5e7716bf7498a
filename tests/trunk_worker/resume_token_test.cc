#include "trunk_worker/resume_token.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/random.h"

namespace trunkline::trunk {
namespace {

using ::testing::HasSubstr;

GenerationRequest RandomRequest(RandomStream& random) {
  GenerationRequest request;
  for (uint64_t i = random.NextBelow(40); i-- > 0;)
    request.prompt.push_back(static_cast<int32_t>(random.NextBelow(1000)));
  request.sampling.temperature = static_cast<float>(random.NextUnit());
  request.sampling.top_k = static_cast<int32_t>(random.NextBelow(50));
  request.sampling.top_p = 0.5f;
  request.sampling.presence_penalty = -1.5f;
  request.sampling.seed = random.Next();
  request.max_tokens = static_cast<int64_t>(1 + random.NextBelow(1 << 20));
  request.stop = {"a", "bc"};
  request.stop_token_ids = {2};
  request.logprobs = static_cast<int>(random.NextBelow(21));
  request.prompt_logprobs = random.NextBelow(2) == 1;
  request.include_special_tokens = random.NextBelow(2) == 1;
  return request;
}

Output RandomOutput(RandomStream& random) {
  Output output;
  output.token_ids = {static_cast<int32_t>(random.NextBelow(1000))};
  output.text = std::string(random.NextBelow(5), 'x');
  output.usage.decode =
      absl::Microseconds(static_cast<int64_t>(random.NextBelow(1 << 30)));
  return output;
}

std::string SomeToken(RandomStream& random, int outputs) {
  ResumeTracker tracker(RandomRequest(random), "digest-of-the-model",
                        "portable");
  for (int i = 0; i < outputs; ++i) tracker.Delivered(RandomOutput(random));
  return tracker.Token();
}

TEST(ResumeToken, WhatIsWrittenIsReadAndGivesTheSameBytes) {
  RandomStream random(1);
  for (int round = 0; round < 500; ++round) {
    const GenerationRequest request = RandomRequest(random);
    ResumeTracker tracker(request, "digest-of-the-model", "portable");
    uint32_t outputs = 0;
    for (uint64_t i = random.NextBelow(6); i-- > 0; ++outputs)
      tracker.Delivered(RandomOutput(random));
    const std::string bytes = tracker.Token();
    EXPECT_LE(bytes.size(), kResumeTokenBytesMax);
    const auto token = ParseResumeToken(bytes);
    ASSERT_TRUE(token.ok()) << token.status();
    EXPECT_EQ(SerializeResumeToken(*token), bytes);
    EXPECT_EQ(token->model_digest, "digest-of-the-model");
    EXPECT_EQ(token->numerics_class, "portable");
    EXPECT_EQ(token->prompt_tokens, request.prompt.size());
    EXPECT_EQ(token->sampling.seed, request.sampling.seed);
    EXPECT_EQ(token->sampling.temperature, request.sampling.temperature);
    EXPECT_EQ(token->max_tokens, request.max_tokens);
    EXPECT_EQ(token->logprobs, request.logprobs);
    EXPECT_EQ(token->prompt_logprobs, request.prompt_logprobs);
    EXPECT_EQ(token->include_special_tokens, request.include_special_tokens);
    EXPECT_EQ(token->output_tokens, outputs);
  }
}

// A stream in two halves has, where they meet, the token of the whole.
TEST(ResumeToken, AResumedStreamsTokensAreThoseOfTheWhole) {
  RandomStream random(2);
  for (int round = 0; round < 100; ++round) {
    const GenerationRequest request = RandomRequest(random);
    std::vector<Output> outputs;
    for (int i = 0; i < 8; ++i) outputs.push_back(RandomOutput(random));
    ResumeTracker whole(request, "d", "portable");
    GenerationRequest rest = request;
    for (int i = 0; i < 5; ++i) {
      whole.Delivered(outputs[i]);
      rest.delivered.push_back(outputs[i].token_ids[0]);
      rest.delivered_text = TextDigest(rest.delivered_text, outputs[i].text);
      rest.spent = outputs[i].usage;
    }
    ResumeTracker resumed(rest, "d", "portable");
    EXPECT_EQ(resumed.Token(), whole.Token());
    for (int i = 5; i < 8; ++i) {
      whole.Delivered(outputs[i]);
      resumed.Delivered(outputs[i]);
      EXPECT_EQ(resumed.Token(), whole.Token());
    }
  }
}

TEST(ResumeToken, EveryFlippedBitAndEveryCutIsRefused) {
  RandomStream random(3);
  const std::string bytes = SomeToken(random, 3);
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    std::string damaged = bytes;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    const auto token = ParseResumeToken(damaged);
    ASSERT_FALSE(token.ok()) << "bit " << bit;
    EXPECT_EQ(token.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(token.status().message(), HasSubstr("resume token"));
  }
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(ParseResumeToken(bytes.substr(0, size)).ok()) << size;
  EXPECT_FALSE(ParseResumeToken(bytes + "x").ok());
}

TEST(ResumeToken, SaysWhatIsWrong) {
  RandomStream random(4);
  const std::string bytes = SomeToken(random, 1);
  const auto message = [](const std::string& token) {
    return std::string(ParseResumeToken(token).status().message());
  };
  EXPECT_THAT(message(""), HasSubstr("is none"));
  EXPECT_THAT(message("hello there"), HasSubstr("is none"));
  std::string later = bytes;
  later[2] = 9;
  EXPECT_THAT(message(later), HasSubstr("version 9"));
  EXPECT_THAT(message(bytes.substr(0, 10)), HasSubstr("cut short: 10 bytes"));
  std::string damaged = bytes;
  ++damaged[bytes.size() / 2];
  EXPECT_THAT(message(damaged), HasSubstr("damaged"));
  EXPECT_THAT(message(std::string(513, 'x')), HasSubstr("has 513 bytes"));
}

// Made up with a right digest: what it claims is still checked.
TEST(ResumeToken, FieldsThatNoRequestCanHaveAreRefusedBehindARightDigest) {
  RandomStream random(5);
  ResumeToken token = *ParseResumeToken(SomeToken(random, 1));
  const auto message = [](const ResumeToken& made_up) {
    return std::string(
        ParseResumeToken(SerializeResumeToken(made_up)).status().message());
  };
  EXPECT_EQ(message(token), "");
  ResumeToken bad = token;
  bad.sampling.top_p = 7;
  EXPECT_THAT(message(bad), HasSubstr("sampling.top_p is 7"));
  bad = token;
  bad.decode_us = uint64_t{1} << 62;
  EXPECT_THAT(message(bad), HasSubstr("a hundred years"));
}

TEST(TextDigest, IsOfTheTextAndNotOfItsCuts) {
  EXPECT_EQ(TextDigest(TextDigest(0, "ab"), "c"), TextDigest(0, "abc"));
  EXPECT_EQ(TextDigest(TextDigest(0, ""), "abc"), TextDigest(0, "abc"));
  EXPECT_NE(TextDigest(0, "abc"), TextDigest(0, "acb"));
}

TEST(StopDigest, TellsStringsApartThatJoinAlike) {
  const std::vector<std::string> one = {"ab", "c"}, other = {"a", "bc"};
  EXPECT_NE(StopDigest(one), StopDigest(other));
}

}  // namespace
}  // namespace trunkline::trunk
