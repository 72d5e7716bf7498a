// A checker that never complains proves nothing: every planted protocol bug is
// found within a thousand seeds, and none is found where none is planted.

#include <gtest/gtest.h>

#include "common/log.h"
#include "sim/planted_bug.h"
#include "sim/sim_run.h"

namespace trunkline::sim {
namespace {

constexpr uint64_t kSeedsMost = 1000;

class Mutation : public ::testing::TestWithParam<int> {};

TEST_P(Mutation, IsFoundWithinAThousandSeeds) {
  InitLogging("sim", "", "off").IgnoreError();
  const auto bug = static_cast<PlantedBug>(GetParam());
  for (uint64_t seed = 1; seed <= kSeedsMost; ++seed) {
    RunOptions options;
    options.seed = seed;
    options.bug = bug;
    const RunResult result = RunSeed(options);
    if (result.violation.empty()) continue;
    RecordProperty("seed", static_cast<int>(seed));
    RecordProperty("violation", result.violation);
    std::printf("%s: seed %d: %s\n", Name(bug), static_cast<int>(seed),
                result.violation.c_str());
    options.bug = PlantedBug::kNone;
    EXPECT_EQ(RunSeed(options).violation, "")
        << "the seed fails without the bug too";
    return;
  }
  FAIL() << Name(bug) << " was not found in " << kSeedsMost << " seeds";
}

INSTANTIATE_TEST_SUITE_P(Planted, Mutation,
                         ::testing::Range(1,
                                          static_cast<int>(PlantedBug::kCount)),
                         [](const ::testing::TestParamInfo<int>& planted) {
                           std::string name =
                               Name(static_cast<PlantedBug>(planted.param));
                           for (char& c : name)
                             if (c == '-') c = '_';
                           return name;
                         });

TEST(MutationList, HoldsAtLeastTwelveBugsWithNamesOfTheirOwn) {
  EXPECT_GE(static_cast<int>(PlantedBug::kCount) - 1, 12);
  for (size_t a = 0; a < kPlantedBugNames.size(); ++a) {
    for (size_t b = 0; b < a; ++b)
      EXPECT_STRNE(kPlantedBugNames[a], kPlantedBugNames[b]);
  }
}

}  // namespace
}  // namespace trunkline::sim
