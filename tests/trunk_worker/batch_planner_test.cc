#include "trunk_worker/batch_planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "common/random.h"

namespace trunkline::trunk {
namespace {

std::vector<BatchRun> Plan(const BatchLimits& limits,
                           const std::vector<int64_t>& prompt_left,
                           uint64_t rotation = 0) {
  std::vector<BatchRun> runs;
  PlanBatch(limits, prompt_left, rotation, &runs);
  return runs;
}

int64_t Rows(const std::vector<BatchRun>& runs) {
  int64_t rows = 0;
  for (const BatchRun& run : runs) rows += run.rows;
  return rows;
}

TEST(BatchPlanner, PutsDecodeRowsFirstAndFillsTheRestWithChunksInOrder) {
  const auto runs =
      Plan({.rows_max = 16, .prefill_chunk = 8}, {0, 20, 0, 3, 9});
  ASSERT_EQ(runs.size(), 5u);
  EXPECT_TRUE(runs[0].decode && runs[1].decode);
  EXPECT_EQ(runs[0].sequence, 0u);
  EXPECT_EQ(runs[1].sequence, 2u);
  EXPECT_EQ(runs[2].sequence, 1u);
  EXPECT_EQ(runs[2].rows, 8);  // one chunk, though 14 rows are free
  EXPECT_EQ(runs[3].sequence, 3u);
  EXPECT_EQ(runs[3].rows, 3);
  EXPECT_EQ(runs[4].sequence, 4u);
  EXPECT_EQ(runs[4].rows, 3);  // what is left of the step
}

TEST(BatchPlanner, NothingToDoIsAnEmptyPlan) {
  EXPECT_TRUE(Plan({.rows_max = 16, .prefill_chunk = 8}, {}).empty());
}

// Whatever the load: the step is never too large, no run is empty or longer
// than a chunk, no sequence stands twice, and rows are left unused only when
// nothing could use them.
TEST(BatchPlanner, KeepsItsLimitsAndWastesNoRowOnRandomLoads) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    RandomStream random(seed);
    const BatchLimits limits{
        .rows_max = 2 + static_cast<int64_t>(random.NextBelow(40)),
        .prefill_chunk = 1 + static_cast<int64_t>(random.NextBelow(50))};
    std::vector<int64_t> left(random.NextBelow(30));
    for (int64_t& l : left)
      l = random.NextBelow(2) == 0
              ? 0
              : static_cast<int64_t>(random.NextBelow(100));
    const auto runs = Plan(limits, left, random.Next());
    std::map<size_t, int64_t> planned;
    int64_t usable = 0;
    for (int64_t l : left)
      usable += l == 0 ? 1 : std::min(l, limits.prefill_chunk);
    bool prefill_seen = false;
    for (const BatchRun& run : runs) {
      ASSERT_GT(run.rows, 0);
      ASSERT_TRUE(planned.emplace(run.sequence, run.rows).second);
      ASSERT_EQ(run.decode, left[run.sequence] == 0);
      ASSERT_LE(
          run.rows,
          run.decode ? 1 : std::min(left[run.sequence], limits.prefill_chunk));
      ASSERT_FALSE(run.decode && prefill_seen) << "decode runs come first";
      prefill_seen = prefill_seen || !run.decode;
    }
    ASSERT_EQ(Rows(runs), std::min(usable, limits.rows_max)) << "seed " << seed;
  }
}

// With more decoding sequences than rows, each is served within one round of
// turns, and the oldest prompt moves in every step.
TEST(BatchPlanner, StarvesNeitherDecodersNorTheOldestPrompt) {
  const BatchLimits limits{.rows_max = 8, .prefill_chunk = 4};
  std::vector<int64_t> left(25, 0);
  left.push_back(100);
  left.push_back(100);
  std::vector<int> waited(left.size(), 0);
  uint64_t rotation = 0;
  for (int step = 0; step < 40; ++step) {
    for (int& w : waited) ++w;
    for (const BatchRun& run : Plan(limits, left, rotation)) {
      waited[run.sequence] = 0;
      if (run.decode) ++rotation;
    }
    ASSERT_EQ(waited[25], 0) << "the oldest prompt stood still";
    ASSERT_LE(*std::max_element(waited.begin(), waited.begin() + 25), 4);
  }
}

TEST(BatchPlanner, ServesPromptsFirstComeFirstServed) {
  const BatchLimits limits{.rows_max = 8, .prefill_chunk = 8};
  std::vector<int64_t> left = {20, 20, 20};
  std::vector<size_t> finished;
  while (finished.size() < left.size()) {
    const auto runs = Plan(limits, left);
    // Finished prompts would decode; here they leave.
    for (const BatchRun& run : runs) {
      if (run.decode) continue;
      left[run.sequence] -= run.rows;
      if (left[run.sequence] == 0) finished.push_back(run.sequence);
    }
  }
  EXPECT_EQ(finished, (std::vector<size_t>{0, 1, 2}));
}

}  // namespace
}  // namespace trunkline::trunk
