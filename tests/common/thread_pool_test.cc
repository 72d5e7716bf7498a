#include "common/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <thread>
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

// Scheduling policies of the pool's two threads, the caller's first.
std::vector<int> PoliciesOf(bool wait_for_turn) {
  std::vector<int> policies(2, -1);
  ThreadPool pool({.threads = 2,
                   .cores = {},
                   .spin_microseconds = 5,
                   .wait_for_turn = wait_for_turn});
  // A thread of its own, which keeps what AdoptCaller gives it.
  std::thread([&] {
    pool.AdoptCaller();
    std::atomic<int> arrived{0};
    pool.ParallelFor(2, [&](int64_t, int thread) {
      policies[static_cast<size_t>(thread)] = sched_getscheduler(0);
      // Neither thread takes both.
      arrived.fetch_add(1);
      while (arrived.load() != 2) std::this_thread::yield();
    });
  }).join();
  return policies;
}

TEST(ThreadPool, WaitsForItsTurnWhenAsked) {
  EXPECT_EQ(PoliciesOf(true), (std::vector<int>{SCHED_BATCH, SCHED_BATCH}));
  EXPECT_EQ(PoliciesOf(false), (std::vector<int>{SCHED_OTHER, SCHED_OTHER}));
}

}  // namespace
}  // namespace trunkline
