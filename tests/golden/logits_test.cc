// Logits, greedy continuations, single layers and perplexity against values
// that did not come from this project's code (tests/fixtures/README.md).

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/bfloat16.h"
#include "common/check.h"
#include "tests/golden/checkpoint_fixture.h"

namespace trunkline::testing {
namespace {

using Prompts = std::vector<std::vector<int32_t>>;

double Tolerance(const nlohmann::json& index, const nlohmann::json& prompt) {
  if (prompt.contains("tolerance_logits_max_abs"))
    return prompt["tolerance_logits_max_abs"];
  return index["tolerance"]["max_abs"];
}

void ExpectLogitsAndContinuations(
    const Fixture& fixture,
    kernels::Numerics numerics = kernels::Numerics::kPortable) {
  const nlohmann::json index = ReadJson(fixture.expected + "/index.json");
  auto model = LoadedModel::Load(fixture.checkpoint, 1, numerics);
  const size_t vocab = index["vocab"];
  for (const nlohmann::json& prompt : index["prompts"]) {
    SCOPED_TRACE(std::string(prompt["logits"]));
    const std::vector<int32_t> tokens = prompt["tokens"];
    const std::vector<int32_t> greedy = prompt["greedy"];
    ScoreOptions options;
    options.max_tokens = std::max<int64_t>(1, greedy.size());
    const Scored scored = ScoreTogether(*model, {tokens}, options)[0];

    const std::vector<float> expected =
        ReadFloats(fixture.expected + "/" + std::string(prompt["logits"]));
    ASSERT_EQ(expected.size(), tokens.size() * vocab);
    ASSERT_GE(scored.logits.size(), expected.size());
    double worst = 0.0;
    for (size_t i = 0; i < expected.size(); ++i) {
      worst = std::max(
          worst, std::abs(static_cast<double>(scored.logits[i]) - expected[i]));
    }
    EXPECT_LE(worst, Tolerance(index, prompt));
    for (size_t i = 0; i < greedy.size(); ++i)
      ASSERT_EQ(scored.token_ids[i], greedy[i]) << "continuation token " << i;
  }
}

TEST(GoldenLogits, TinyF32WithGroupedRouter) {
  ExpectLogitsAndContinuations(CheckpointFixture("tiny"));
}
TEST(GoldenLogits, TinyDense) {
  ExpectLogitsAndContinuations(CheckpointFixture("tiny-dense"));
}
TEST(GoldenLogits, TinyLatent) {
  ExpectLogitsAndContinuations(CheckpointFixture("tiny-latent"));
}
TEST(GoldenLogits, TinyBf16) {
  ExpectLogitsAndContinuations(CheckpointFixture("tiny-bf16"));
}
TEST(GoldenLogits, Demo) { ExpectLogitsAndContinuations(DemoFixture()); }

// Another order of the same sums: the class is held to the same tolerance.
void ExpectLogitsInPairs(const Fixture& fixture) {
  const absl::Status has =
      kernels::CheckMachineHas(kernels::Numerics::kBf16Dot);
  if (!has.ok()) GTEST_SKIP() << has.message();
  ExpectLogitsAndContinuations(fixture, kernels::Numerics::kBf16Dot);
}
TEST(GoldenLogits, TinyBf16InClassBf16Dot) {
  ExpectLogitsInPairs(CheckpointFixture("tiny-bf16"));
}
TEST(GoldenLogits, DemoInClassBf16Dot) { ExpectLogitsInPairs(DemoFixture()); }

// Distance of two bf16 values in units in the last place.
int64_t Bf16Distance(float a, float b) {
  auto ordered = [](float value) {
    const int64_t bits = FloatToBf16(value);
    return (bits & 0x8000) != 0 ? -(bits & 0x7fff) : bits;
  };
  return std::abs(ordered(a) - ordered(b));
}

// One layer at a time: what enters it is given, so errors do not pile up.
TEST(GoldenBlocks, EachLayerOfTinyBf16RoundsWhereTheReferenceDoes) {
  const Fixture fixture = CheckpointFixture("tiny-bf16");
  const nlohmann::json index = ReadJson(fixture.expected + "/index.json");
  auto model = LoadedModel::Load(fixture.checkpoint);
  const model::ModelConfig& config = model->checkpoint().config();
  auto experts = model->NewLocalExperts();
  trunk::LayerRunner runner(&config, &model->weights(), model->activation(),
                            experts.get(), {&model->pool()}, 64);
  int blocks = 0;
  for (const nlohmann::json& prompt : index["prompts"]) {
    if (!prompt.contains("blocks")) continue;
    const std::vector<int32_t> tokens = prompt["tokens"];
    for (const nlohmann::json& block : prompt["blocks"]) {
      const LayerIndex layer(block["layer"]);
      SCOPED_TRACE(
          absl::StrCat("layer ", layer.value, " ", std::string(block["kind"])));
      std::vector<float> rows =
          ReadFloats(fixture.expected + "/" + std::string(block["in"]));
      const std::vector<float> expected =
          ReadFloats(fixture.expected + "/" + std::string(block["out"]));
      auto states = trunk::SequencePool::Create(
          trunk::StateLayout::For(config, model->activation()),
          {.sequences_max = 1, .tokens_max = 64});
      ASSERT_TRUE(states.ok());
      auto state = (*states)->Admit(64);
      const trunk::RowRun run{state.get(), tokens, trunk::LogitRows::kNone};
      ASSERT_TRUE(
          runner.RunLayer(StepId(1), layer, {&run, 1}, rows.data()).ok());
      ASSERT_EQ(rows.size(), expected.size());
      size_t equal = 0;
      int64_t worst = 0;
      for (size_t i = 0; i < rows.size(); ++i) {
        equal += std::bit_cast<uint32_t>(rows[i]) ==
                 std::bit_cast<uint32_t>(expected[i]);
        worst = std::max(worst, Bf16Distance(rows[i], expected[i]));
      }
      EXPECT_GE(static_cast<double>(equal), 0.995 * rows.size())
          << equal << " of " << rows.size() << " equal, worst " << worst;
      EXPECT_LE(worst, 2);
      ++blocks;
    }
  }
  EXPECT_EQ(blocks, 8);
}

// -log p of each token given those before it, averaged over all windows.
TEST(GoldenPerplexity, DemoMeetsTheHeldOutLikelihood) {
  const Fixture fixture = DemoFixture();
  const nlohmann::json expected =
      ReadJson(fixture.expected + "/perplexity.json");
  auto model = LoadedModel::Load(fixture.checkpoint, 2);
  const Prompts windows = expected["windows"];
  ASSERT_EQ(windows.size(), 12u);
  ScoreOptions options;
  options.batch = {.rows_max = 256, .prefill_chunk = 128};
  const std::vector<Scored> scored = ScoreTogether(*model, windows, options);
  const int64_t vocab = model->checkpoint().config().vocab_size;
  double nll = 0.0;
  int64_t count = 0;
  for (size_t w = 0; w < windows.size(); ++w) {
    for (size_t t = 0; t + 1 < windows[w].size(); ++t) {
      const float* row =
          scored[w].logits.data() + static_cast<int64_t>(t) * vocab;
      double best = row[0];
      for (int64_t i = 1; i < vocab; ++i)
        best = std::max(best, static_cast<double>(row[i]));
      double sum = 0.0;
      for (int64_t i = 0; i < vocab; ++i) sum += std::exp(row[i] - best);
      nll += best + std::log(sum) - row[windows[w][t + 1]];
      ++count;
    }
  }
  EXPECT_NEAR(nll / count, expected["mean_nll_nats"],
              expected["tolerance_mean_nll"]);
}

}  // namespace
}  // namespace trunkline::testing
