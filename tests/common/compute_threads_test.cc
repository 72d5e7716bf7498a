#include "common/compute_threads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <set>
#include <thread>

namespace trunkline {
namespace {

using ::testing::ElementsAre;

TEST(ComputeThreads, UsableCoresAreCpusOfThisProcessEachOnce) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  const std::vector<int> cores = UsableCores();
  EXPECT_EQ(std::set<int>(cores.begin(), cores.end()).size(), cores.size());
  EXPECT_LE(cores.size(), static_cast<size_t>(CPU_COUNT(&allowed)));
  for (const int cpu : cores) EXPECT_TRUE(CPU_ISSET(cpu, &allowed)) << cpu;
}

TEST(ComputeThreads, AnAffinityLeavesTheRestOfTheMachineAlone) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  const int last = UsableCores().back();
  std::thread([last] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(last, &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    EXPECT_FALSE(UsableCores().empty());
  }).join();
  cpu_set_t after;
  ASSERT_EQ(sched_getaffinity(0, sizeof(after), &after), 0);
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
}

TEST(ComputeThreads, NamedCpusDecideTheCountUnlessItIsGiven) {
  EXPECT_EQ(ComputeThreads(0, {3, 5, 7}).threads, 3);
  EXPECT_THAT(ComputeThreads(0, {3, 5, 7}).cores, ElementsAre(3, 5, 7));
  EXPECT_EQ(ComputeThreads(2, {3, 5, 7}).threads, 2);
  EXPECT_EQ(ComputeThreads(0, {}).threads,
            static_cast<int>(UsableCores().size()));
  EXPECT_TRUE(ComputeThreads(0, {}).cores.empty());
}

TEST(ComputeThreads, SharesCoverAllCpusAndNoneIsEmpty) {
  EXPECT_THAT(ShareOut({0, 1, 2, 3, 4}, 2),
              ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3, 4)));
  EXPECT_THAT(ShareOut({4, 9}, 3),
              ElementsAre(ElementsAre(4), ElementsAre(4), ElementsAre(9)));
  for (int cpus = 1; cpus < 12; ++cpus) {
    std::vector<int> all(static_cast<size_t>(cpus));
    for (int i = 0; i < cpus; ++i) all[static_cast<size_t>(i)] = 10 + i;
    for (int parts = 1; parts < 30; ++parts) {
      std::set<int> seen;
      for (const auto& share : ShareOut(all, parts)) {
        EXPECT_FALSE(share.empty());
        seen.insert(share.begin(), share.end());
      }
      // With fewer cpus than parts all of them are used as well.
      EXPECT_EQ(seen.size(), all.size()) << cpus << " in " << parts;
    }
  }
}

}  // namespace
}  // namespace trunkline
