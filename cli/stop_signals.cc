#include "cli/stop_signals.h"

#include <semaphore.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "absl/time/clock.h"
#include "cli/exit_code.h"

namespace trunkline::cli {
namespace {

// What a signal handler may touch has to be global: lock-free atomics and a
// semaphore.
sem_t stop_semaphore;
std::atomic<int> first_signal{0};
std::atomic<bool> orderly{false};
static_assert(std::atomic<int>::is_always_lock_free);

void WriteLine(const char* text) {
  // Nothing can be done about a failed write here.
  if (write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
}

void OnStopSignal(int signal) {
  const int saved_errno = errno;
  int none = 0;
  const bool first = first_signal.compare_exchange_strong(none, signal);
  if (!orderly || !first) _exit(kExitInterrupted);
  sem_post(&stop_semaphore);
  errno = saved_errno;
}

void OnAlarm(int) {
  WriteLine("trunkline: the orderly stop took too long; ending now\n");
  _exit(kExitFailed);
}

void Handle(int signal, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(signal, &action, nullptr);
}

}  // namespace

void StopSignals::Install() {
  sem_init(&stop_semaphore, 0, 0);
  Handle(SIGINT, OnStopSignal);
  Handle(SIGTERM, OnStopSignal);
}

void StopSignals::Orderly() { orderly = true; }

bool StopSignals::Wait(absl::Duration max_wait) {
  if (max_wait == absl::InfiniteDuration()) {
    while (sem_wait(&stop_semaphore) != 0) {
    }
    return true;
  }
  const timespec until = absl::ToTimespec(absl::Now() + max_wait);
  while (sem_timedwait(&stop_semaphore, &until) != 0) {
    if (errno != EINTR) return false;
  }
  return true;
}

void StopSignals::Release() { sem_post(&stop_semaphore); }

int StopSignals::Received() { return first_signal; }

void StopSignals::EndProcessAfter(absl::Duration limit) {
  Handle(SIGALRM, OnAlarm);
  const double seconds = std::ceil(absl::ToDoubleSeconds(limit));
  alarm(static_cast<unsigned>(std::clamp(seconds, 1.0, 1e9)));
}

}  // namespace trunkline::cli
