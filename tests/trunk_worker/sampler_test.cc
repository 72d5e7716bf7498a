#include "trunk_worker/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "common/random.h"

namespace trunkline::trunk {
namespace {

using ::testing::HasSubstr;

std::vector<float> RandomLogits(uint64_t seed, size_t vocab, double spread) {
  RandomStream random(seed, 1u << 20);
  std::vector<float> logits(vocab);
  for (float& l : logits)
    l = static_cast<float>((random.NextUnit() - 0.5) * spread);
  return logits;
}

// The distribution a draw should follow, written down plainly: doubles, libm,
// whole sorts.
std::vector<double> NaiveDistribution(std::vector<double> logits,
                                      const SamplingParams& p,
                                      const std::vector<int32_t>& prompt,
                                      const std::vector<int32_t>& output) {
  const size_t n = logits.size();
  auto in = [](const std::vector<int32_t>& list, size_t id) {
    return std::find(list.begin(), list.end(), static_cast<int32_t>(id)) !=
           list.end();
  };
  for (size_t i = 0; i < n; ++i) {
    if (in(prompt, i) || in(output, i)) {
      logits[i] = logits[i] > 0 ? logits[i] / p.repetition_penalty
                                : logits[i] * p.repetition_penalty;
    }
    if (in(output, i)) logits[i] -= p.presence_penalty;
  }
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  std::vector<double> result(n, 0.0);
  if (p.temperature == 0.0f) {
    result[order[0]] = 1.0;
    return result;
  }
  std::vector<double> weight(n);
  for (size_t i = 0; i < n; ++i)
    weight[i] = std::exp((logits[i] - logits[order[0]]) / p.temperature);
  std::vector<size_t> kept;
  for (size_t i : order)
    if (weight[i] >= p.min_p) kept.push_back(i);
  if (p.top_k > 0 && kept.size() > static_cast<size_t>(p.top_k))
    kept.resize(p.top_k);
  double total = 0.0;
  for (size_t i : kept) total += weight[i];
  if (p.top_p < 1.0f) {
    double sum = 0.0;
    size_t keep = 0;
    while (keep < kept.size() && sum < p.top_p * total)
      sum += weight[kept[keep++]];
    kept.resize(keep);
    total = sum;
  }
  for (size_t i : kept) result[i] = weight[i] / total;
  return result;
}

absl::StatusOr<SampledToken> Sample(const std::vector<float>& logits,
                                    const SamplingParams& params,
                                    uint64_t position = 0,
                                    const TokenHistory* history = nullptr,
                                    int logprobs = 0) {
  SamplerScratch scratch;
  return SampleToken(logits, {&params, history, position, logprobs}, &scratch);
}

TEST(Sampler, GreedyTakesTheLargestAndTheLowerIdOfEquals) {
  EXPECT_EQ(Sample({1, 5, 5, 2}, {})->id, 1);
  EXPECT_EQ(Sample({-3, -3}, {})->id, 0);
}

TEST(Sampler, EqualProbabilitiesAtTheTopKEdgeKeepTheLowerIds) {
  SamplingParams p{.temperature = 1.0f, .top_k = 2};
  std::vector<float> logits(50, 1.0f);
  for (uint64_t i = 0; i < 200; ++i) {
    p.seed = i;
    EXPECT_LT(Sample(logits, p)->id, 2);
  }
}

TEST(Sampler, IsAFunctionOfSeedAndPositionOnly) {
  const std::vector<float> logits = RandomLogits(3, 300, 4.0);
  const SamplingParams p{.temperature = 1.0f, .top_p = 0.9f, .seed = 77};
  SamplerScratch used;
  std::vector<int32_t> first;
  for (uint64_t i = 0; i < 20; ++i) first.push_back(Sample(logits, p, i)->id);
  for (uint64_t i = 20; i-- > 0;) {
    const auto again = SampleToken(logits, {&p, nullptr, i, 0}, &used);
    EXPECT_EQ(again->id, first[i]);
  }
  SamplingParams other = p;
  other.seed = 78;
  std::vector<int32_t> second;
  for (uint64_t i = 0; i < 20; ++i)
    second.push_back(Sample(logits, other, i)->id);
  EXPECT_NE(first, second);
}

// Over random parameters: what is drawn lies in the naive distribution's
// support, and 4000 draws follow it (Pearson's chi-square over the tokens that
// are expected at least five times, far beyond the 1e-6 quantile = a failure).
TEST(Sampler, DrawsFollowTheNaiveDistribution) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    RandomStream random(seed);
    const size_t vocab = 2 + random.NextBelow(400);
    SamplingParams p;
    p.temperature = 0.2f + static_cast<float>(random.NextUnit());
    if (random.NextBelow(2) != 0)
      p.top_k = 1 + static_cast<int32_t>(random.NextBelow(vocab + 10));
    if (random.NextBelow(2) != 0)
      p.top_p = 0.05f + 0.95f * static_cast<float>(random.NextUnit());
    if (random.NextBelow(2) != 0)
      p.min_p = 0.3f * static_cast<float>(random.NextUnit());
    std::vector<int32_t> prompt, output;
    if (random.NextBelow(2) != 0) {
      p.repetition_penalty = 0.5f + static_cast<float>(random.NextUnit()) * 2;
      p.presence_penalty = static_cast<float>(random.NextUnit() - 0.5) * 3;
      for (int i = 0; i < 10; ++i) {
        prompt.push_back(static_cast<int32_t>(random.NextBelow(vocab)));
        output.push_back(static_cast<int32_t>(random.NextBelow(vocab)));
      }
    }
    TokenHistory history;
    for (int32_t id : prompt) history.AddPrompt(id);
    for (int32_t id : output) history.AddOutput(id);
    const std::vector<float> logits = RandomLogits(seed, vocab, 8.0);
    const std::vector<double> expected = NaiveDistribution(
        std::vector<double>(logits.begin(), logits.end()), p, prompt, output);

    constexpr int kDraws = 4000;
    std::vector<int> drawn(vocab, 0);
    SamplerScratch scratch;
    p.seed = seed * 1000;
    for (int i = 0; i < kDraws; ++i) {
      const auto token = SampleToken(
          logits, {&p, &history, static_cast<uint64_t>(i), 0}, &scratch);
      ASSERT_TRUE(token.ok());
      ++drawn[token->id];
    }
    double chi = 0.0, rest_expected = 0.0, rest_drawn = 0.0;
    int cells = 0;
    for (size_t i = 0; i < vocab; ++i) {
      const double e = expected[i] * kDraws;
      // The naive and the real cut may differ by the one token whose share
      // lies on the edge within rounding.
      if (e == 0.0) {
        ASSERT_LT(drawn[i], kDraws / 100) << "seed " << seed << " token " << i;
        continue;
      }
      if (e < 5.0) {
        rest_expected += e;
        rest_drawn += drawn[i];
        continue;
      }
      chi += (drawn[i] - e) * (drawn[i] - e) / e;
      ++cells;
    }
    if (rest_expected >= 5.0) {
      chi += (rest_drawn - rest_expected) * (rest_drawn - rest_expected) /
             rest_expected;
      ++cells;
    }
    if (cells < 2) continue;
    // Wilson-Hilferty: the 1 - 1e-6 quantile (z = 4.75) of chi-square.
    const double df = cells - 1;
    const double w = 1 - 2 / (9 * df) + 4.75 * std::sqrt(2 / (9 * df));
    EXPECT_LT(chi, df * w * w * w) << "seed " << seed << " cells " << cells;
  }
}

TEST(Sampler, GreedyEqualsTheNaiveChoiceUnderPenalties) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    RandomStream random(seed);
    const size_t vocab = 2 + random.NextBelow(50);
    SamplingParams p;
    p.repetition_penalty = 0.5f + static_cast<float>(random.NextUnit());
    p.presence_penalty = static_cast<float>(random.NextUnit() * 4 - 2);
    std::vector<int32_t> prompt = {
        static_cast<int32_t>(random.NextBelow(vocab))};
    std::vector<int32_t> output = {
        static_cast<int32_t>(random.NextBelow(vocab))};
    TokenHistory history;
    history.AddPrompt(prompt[0]);
    history.AddOutput(output[0]);
    const std::vector<float> logits = RandomLogits(seed, vocab, 6.0);
    const auto expected = NaiveDistribution(
        std::vector<double>(logits.begin(), logits.end()), p, prompt, output);
    const auto token = Sample(logits, p, 0, &history);
    EXPECT_EQ(expected[token->id], 1.0) << "seed " << seed;
  }
}

TEST(Sampler, LogprobsAreThoseOfTheUnmodifiedDistributionBestFirst) {
  const std::vector<float> logits = RandomLogits(9, 1000, 10.0);
  const SamplingParams p{.temperature = 0.1f, .top_k = 3, .seed = 5};
  TokenHistory history;
  history.AddOutput(4);
  const auto token = Sample(logits, p, 2, &history, 20);
  ASSERT_TRUE(token.ok());
  double sum = 0.0;
  for (float l : logits) sum += std::exp(static_cast<double>(l));
  auto expected = [&](int32_t id) { return logits[id] - std::log(sum); };
  EXPECT_EQ(token->logprobs.chosen.id, token->id);
  EXPECT_NEAR(token->logprobs.chosen.logprob, expected(token->id), 2e-5);
  ASSERT_EQ(token->logprobs.top.size(), 20u);
  for (size_t i = 0; i < 20; ++i) {
    const TokenLogprob& top = token->logprobs.top[i];
    EXPECT_NEAR(top.logprob, expected(top.id), 2e-5);
    if (i > 0) {
      EXPECT_LE(top.logprob, token->logprobs.top[i - 1].logprob);
    }
  }
  EXPECT_EQ(token->logprobs.top[0].id,
            std::max_element(logits.begin(), logits.end()) - logits.begin());
}

TEST(Sampler, ALogitThatIsNotFiniteIsAnErrorThatNamesIt) {
  for (float bad : {std::numeric_limits<float>::quiet_NaN(),
                    std::numeric_limits<float>::infinity(),
                    -std::numeric_limits<float>::infinity()}) {
    std::vector<float> logits(10, 0.0f);
    logits[7] = bad;
    const auto token = Sample(logits, {});
    ASSERT_EQ(token.status().code(), absl::StatusCode::kInternal);
    EXPECT_THAT(token.status().message(), HasSubstr("token 7"));
  }
}

TEST(Sampler, ExtremePenaltiesAndTemperaturesStillGiveAToken) {
  TokenHistory history;
  for (int i = 0; i < 5; ++i) history.AddOutput(i);
  for (float penalty : {1e-38f, 1e38f}) {
    for (float temperature : {1e-30f, 1.0f, 1e30f}) {
      const SamplingParams p{.temperature = temperature,
                             .top_p = 0.5f,
                             .repetition_penalty = penalty,
                             .seed = 1};
      const auto token =
          Sample({3e30f, -3e30f, 0.0f, 1.0f, -1.0f}, p, 0, &history);
      ASSERT_TRUE(token.ok());
      EXPECT_LT(token->id, 5);
    }
  }
}

TEST(Sampler, ParametersOutsideTheirRangeAreRefusedByNameAndValue) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::pair<SamplingParams, const char*>> cases = {
      {{.temperature = -1.0f}, "sampling.temperature is -1"},
      {{.temperature = nan}, "sampling.temperature is nan"},
      {{.top_k = -2}, "sampling.top_k is -2"},
      {{.top_p = 0.0f}, "sampling.top_p is 0"},
      {{.top_p = 1.5f}, "sampling.top_p is 1.5"},
      {{.min_p = 1.0f}, "sampling.min_p is 1"},
      {{.repetition_penalty = 0.0f}, "sampling.repetition_penalty is 0"},
      {{.presence_penalty = 2.5f}, "sampling.presence_penalty is 2.5"}};
  for (const auto& [params, message] : cases) {
    const absl::Status status = ValidateSampling(params);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(message));
  }
  EXPECT_TRUE(ValidateSampling({}).ok());
}

}  // namespace
}  // namespace trunkline::trunk
