#include "common/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>

#include "common/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace trunkline {
namespace {

inline void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

void Pin(pthread_t thread, int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  pthread_setaffinity_np(thread, sizeof(set),
                         &set);  // a refused pin costs speed, not correctness
}

// A refusal costs speed, not correctness.
void WaitForTurn(pthread_t thread) {
  const sched_param no_priority{};
  pthread_setschedparam(thread, SCHED_BATCH, &no_priority);
}

// True when `done` became true within the time. Yields now and then: with fewer
// cores than threads, spinning would otherwise starve the thread that is waited
// for.
template <typename Done>
bool SpinFor(int microseconds, const Done& done) {
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::microseconds(microseconds);
  while (true) {
    for (int i = 0; i < 64; ++i) {
      if (done()) return true;
      Pause();
    }
    if (std::chrono::steady_clock::now() >= end) return done();
  }
}

}  // namespace

ThreadPool::ThreadPool(const Options& options) : options_(options) {
  TL_CHECK_GE(options.threads, 1);
  for (int i = 1; i < options_.threads; ++i) {
    workers_.emplace_back([this, i] { WorkerLoop(i); });
    if (!options_.cores.empty()) {
      Pin(workers_.back().native_handle(),
          options_.cores[static_cast<size_t>(i) % options_.cores.size()]);
    }
    if (options_.wait_for_turn) WaitForTurn(workers_.back().native_handle());
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_.store(true);
    generation_.fetch_add(1);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::AdoptCaller() const {
  if (!options_.cores.empty()) Pin(pthread_self(), options_.cores.front());
  if (options_.wait_for_turn) WaitForTurn(pthread_self());
}

void ThreadPool::Drain(int thread) {
  while (true) {
    const int64_t task = next_task_.fetch_add(1, std::memory_order_relaxed);
    if (task >= tasks_) return;
    invoke_(fn_, task, thread);
  }
}

void ThreadPool::Run(int64_t tasks, Invoke invoke, const void* fn) {
  invoke_ = invoke;
  fn_ = fn;
  tasks_ = tasks;
  next_task_.store(0, std::memory_order_relaxed);
  busy_workers_.store(static_cast<int>(workers_.size()),
                      std::memory_order_relaxed);
  generation_.fetch_add(1);  // seq_cst against sleeping_: a worker either sees
                             // the job or is seen asleep
  if (sleeping_.load() > 0) {
    std::lock_guard<std::mutex> lock(mutex_);
    wake_.notify_all();
  }
  Drain(0);
  while (busy_workers_.load(std::memory_order_acquire) != 0) {
    if (!SpinFor(options_.spin_microseconds, [this] {
          return busy_workers_.load(std::memory_order_acquire) == 0;
        })) {
      std::this_thread::yield();
    }
  }
}

void ThreadPool::WorkerLoop(int thread) {
  uint64_t seen = 0;
  while (true) {
    const auto changed = [this, seen] {
      return generation_.load(std::memory_order_acquire) != seen;
    };
    if (!SpinFor(options_.spin_microseconds, changed)) {
      std::unique_lock<std::mutex> lock(mutex_);
      sleeping_.fetch_add(1);
      wake_.wait(lock, changed);
      sleeping_.fetch_sub(1);
    }
    seen = generation_.load(std::memory_order_acquire);
    if (stop_.load()) return;
    Drain(thread);
    busy_workers_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace trunkline
