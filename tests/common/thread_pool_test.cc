#include "common/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace trunkline {
namespace {

TEST(ThreadPool, RunsEveryTaskOnceForEveryThreadCount) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool({.threads = threads, .cores = {}, .spin_microseconds = 5});
    for (int64_t tasks : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(tasks));
      pool.ParallelFor(tasks, [&](int64_t task, int thread) {
        ASSERT_LT(thread, threads);
        runs[static_cast<size_t>(task)].fetch_add(1);
      });
      for (const auto& r : runs) ASSERT_EQ(r.load(), 1);
    }
  }
}

TEST(ThreadPool, ManyShortJobsNeverLoseAWakeUp) {
  ThreadPool pool({.threads = 3, .cores = {}, .spin_microseconds = 0});
  std::atomic<int64_t> sum{0};
  for (int i = 0; i < 20000; ++i) {
    pool.ParallelFor(3, [&](int64_t task, int) {
      sum.fetch_add(task + 1, std::memory_order_relaxed);
    });
  }
  EXPECT_EQ(sum.load(), 20000 * 6);
}

}  // namespace
}  // namespace trunkline
