// A checker that never complains proves nothing: every planted protocol bug, at
// the seams of the cores and inside them, is found within a thousand seeds, and
// none is found where none is planted.

#include <gtest/gtest.h>

#include <functional>

#include "common/log.h"
#include "common/planted_mistake.h"
#include "sim/planted_bug.h"
#include "sim/scenario.h"
#include "sim/sim_run.h"

namespace trunkline {

PlantedMistake planted_mistake = PlantedMistake::kNone;

namespace sim {
namespace {

constexpr uint64_t kSeedsMost = 1000;

std::string TestName(std::string name) {
  for (char& c : name)
    if (c == '-') c = '_';
  return name;
}

// The first seed that a run with the bug does not survive, and one without
// does.
void ExpectFound(const char* name,
                 const std::function<RunResult(uint64_t)>& run,
                 const std::function<RunResult(uint64_t)>& run_without) {
  InitLogging("sim", "", "off").IgnoreError();
  for (uint64_t seed = 1; seed <= kSeedsMost; ++seed) {
    const RunResult result = run(seed);
    if (result.violation.empty()) continue;
    ::testing::Test::RecordProperty("seed", static_cast<int>(seed));
    ::testing::Test::RecordProperty("violation", result.violation);
    std::printf("%s: seed %d: %s\n", name, static_cast<int>(seed),
                result.violation.c_str());
    EXPECT_EQ(run_without(seed).violation, "")
        << "the seed fails without the bug too";
    return;
  }
  FAIL() << name << " was not found in " << kSeedsMost << " seeds";
}

RunResult RunWith(uint64_t seed, PlantedBug bug) {
  RunOptions options;
  options.seed = seed;
  options.bug = bug;
  return RunSeed(options);
}

RunResult RunWith(uint64_t seed, PlantedMistake mistake) {
  planted_mistake = mistake;
  const RunResult result = RunWith(seed, PlantedBug::kNone);
  planted_mistake = PlantedMistake::kNone;
  return result;
}

class Mutation : public ::testing::TestWithParam<int> {};

TEST_P(Mutation, IsFoundWithinAThousandSeeds) {
  const auto bug = static_cast<PlantedBug>(GetParam());
  ExpectFound(
      Name(bug), [&](uint64_t seed) { return RunWith(seed, bug); },
      [&](uint64_t seed) { return RunWith(seed, PlantedBug::kNone); });
}

INSTANTIATE_TEST_SUITE_P(Planted, Mutation,
                         ::testing::Range(1,
                                          static_cast<int>(PlantedBug::kCount)),
                         [](const ::testing::TestParamInfo<int>& planted) {
                           return TestName(
                               Name(static_cast<PlantedBug>(planted.param)));
                         });

// The last one shows only where a worker holds a wrong expert; see below.
class CoreMutation : public ::testing::TestWithParam<int> {};

TEST_P(CoreMutation, IsFoundWithinAThousandSeeds) {
  const auto mistake = static_cast<PlantedMistake>(GetParam());
  ExpectFound(
      kPlantedMistakeNames[static_cast<size_t>(mistake)],
      [&](uint64_t seed) { return RunWith(seed, mistake); },
      [&](uint64_t seed) { return RunWith(seed, PlantedMistake::kNone); });
}

INSTANTIATE_TEST_SUITE_P(
    Planted, CoreMutation,
    ::testing::Range(1, static_cast<int>(PlantedMistake::kTrustEveryAnswer)),
    [](const ::testing::TestParamInfo<int>& planted) {
      return TestName(kPlantedMistakeNames[static_cast<size_t>(planted.param)]);
    });

TEST(CoreMutationScenario, AGateThatTrustsEveryAnswerLetsAWrongExpertServe) {
  InitLogging("sim", "", "off").IgnoreError();
  const auto scenario = ReadScenario(
      TRUNKLINE_SOURCE_DIR
      "/sim/scenarios/vllm-28377-wrong-expert-is-rolled-back.json");
  ASSERT_TRUE(scenario.ok()) << scenario.status();
  EXPECT_EQ(RunScenario(*scenario, false).violation, "");
  planted_mistake = PlantedMistake::kTrustEveryAnswer;
  const std::string violation = RunScenario(*scenario, false).violation;
  planted_mistake = PlantedMistake::kNone;
  EXPECT_NE(violation, "");
  std::printf("trust-every-answer: %s\n", violation.c_str());
}

TEST(MutationList, HoldsAtLeastTwelveBugsWithNamesOfTheirOwn) {
  EXPECT_GE(static_cast<int>(PlantedBug::kCount) - 1, 12);
  for (size_t a = 0; a < kPlantedBugNames.size(); ++a) {
    for (size_t b = 0; b < a; ++b)
      EXPECT_STRNE(kPlantedBugNames[a], kPlantedBugNames[b]);
  }
}

TEST(MutationList, HoldsAtLeastEightMistakesInsideTheCores) {
  EXPECT_GE(static_cast<int>(PlantedMistake::kCount) - 1, 8);
  for (size_t a = 0; a < kPlantedMistakeNames.size(); ++a) {
    for (size_t b = 0; b < a; ++b)
      EXPECT_STRNE(kPlantedMistakeNames[a], kPlantedMistakeNames[b]);
  }
}

}  // namespace
}  // namespace sim
}  // namespace trunkline
