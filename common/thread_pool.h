#pragma once

// Fork-join over a fixed set of threads: the caller is one of them.
//
// ParallelFor(tasks, fn) calls fn(task, thread) once for every task in
// 0..tasks-1 and returns when all have returned. Which thread runs which task
// is not fixed, so a result may depend on neither. One ParallelFor at a time
// per pool (the pool belongs to one engine thread). Idle threads spin for a
// bounded time, then sleep. Workers are pinned when cores are given.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace trunkline {

class ThreadPool {
 public:
  struct Options {
    int threads = 1;             // including the caller; at least 1
    std::vector<int> cores;      // logical cpus to pin thread i to (cores[i %
                                 // size]); empty: not pinned
    int spin_microseconds = 50;  // before an idle worker sleeps
    // A thread that wakes up waits for its turn instead of taking the cpu from
    // whoever runs there (SCHED_BATCH): for work that comes from a process of
    // the same cpus, which would otherwise lose its cpu between two messages
    // that it sends.
    bool wait_for_turn = false;
  };

  explicit ThreadPool(const Options& options);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Gives the calling thread the first place of the pool: pins it to the first
  // of the cores, when there are any, and lets it wait for its turn, when the
  // pool's threads do. For the thread that will call ParallelFor, once.
  void AdoptCaller() const;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // fn(int64_t task, int thread). Runs inline when there is one task or one
  // thread.
  template <typename Fn>
  void ParallelFor(int64_t tasks, const Fn& fn) {
    if (tasks <= 0) return;
    if (tasks == 1 || workers_.empty()) {
      for (int64_t i = 0; i < tasks; ++i) fn(i, 0);
      return;
    }
    Run(
        tasks,
        [](const void* f, int64_t task, int thread) {
          (*static_cast<const Fn*>(f))(task, thread);
        },
        &fn);
  }

 private:
  using Invoke = void (*)(const void* fn, int64_t task, int thread);
  void Run(int64_t tasks, Invoke invoke, const void* fn);
  void WorkerLoop(int thread);
  void Drain(int thread);

  Options options_;

  // The job: written by Run before generation_ is raised, read by workers after
  // they saw it.
  Invoke invoke_ = nullptr;
  const void* fn_ = nullptr;
  int64_t tasks_ = 0;
  alignas(64) std::atomic<int64_t> next_task_{0};
  alignas(64) std::atomic<uint64_t> generation_{0};
  alignas(64) std::atomic<int> busy_workers_{0};
  std::atomic<int> sleeping_{0};
  std::atomic<bool> stop_{false};

  std::mutex mutex_;  // guards sleeping workers only
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
};

}  // namespace trunkline
