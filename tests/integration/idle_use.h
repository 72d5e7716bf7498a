#pragma once

// What this process does while nothing is asked of it. The figure itself
// belongs to the benchmarks; a test only tells sleeping threads from spinning
// and from polling ones, by bounds that a busy machine does not reach.

#include <sys/resource.h>

#include <chrono>
#include <functional>

namespace trunkline {

struct IdleUse {
  double cores = 0;                // processor time over wall time
  double wake_ups_per_second = 0;  // times that a thread slept and was woken
};

// Over `interval`, of all threads of this process. `wait(d)` passes the time,
// at most d, as an idle process does.
inline IdleUse MeasureIdleUse(
    std::chrono::milliseconds interval,
    const std::function<void(std::chrono::milliseconds)>& wait) {
  struct Sample {
    double cpu_seconds;
    double wake_ups;
    std::chrono::steady_clock::time_point at;
  };
  const auto sample = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const auto seconds = [](const timeval& t) {
      return static_cast<double>(t.tv_sec) +
             1e-6 * static_cast<double>(t.tv_usec);
    };
    return Sample{seconds(usage.ru_utime) + seconds(usage.ru_stime),
                  static_cast<double>(usage.ru_nvcsw),
                  std::chrono::steady_clock::now()};
  };
  const Sample begin = sample();
  while (std::chrono::steady_clock::now() < begin.at + interval) wait(interval);
  const Sample end = sample();
  const double wall = std::chrono::duration<double>(end.at - begin.at).count();
  return {(end.cpu_seconds - begin.cpu_seconds) / wall,
          (end.wake_ups - begin.wake_ups) / wall};
}

}  // namespace trunkline
