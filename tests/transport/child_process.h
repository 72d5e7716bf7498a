#pragma once

// A child whose output a test reads line by line, with a deadline. Killed when
// it goes out of scope.

#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"

extern char** environ;

namespace trunkline {

class ChildProcess {
 public:
  explicit ChildProcess(std::vector<std::string> arguments) {
    int fds[2];
    if (pipe(fds) != 0) return;
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fds[1], 1);
    posix_spawn_file_actions_addclose(&actions, fds[0]);
    posix_spawn_file_actions_addclose(&actions, fds[1]);
    if (posix_spawnp(&pid_, argv[0], &actions, nullptr, argv.data(), environ) !=
        0) {
      pid_ = -1;
    }
    posix_spawn_file_actions_destroy(&actions);
    close(fds[1]);
    output_ = fds[0];
  }
  ~ChildProcess() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      Wait();
    }
    if (output_ >= 0) close(output_);
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  bool started() const { return pid_ > 0; }
  void Signal(int signal) const { kill(pid_, signal); }
  // The exit status as waitpid gives it.
  int Wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return status;
  }

  // The next line that starts with `prefix`, without it; other lines are
  // skipped. Nothing when the output ends or the deadline passes.
  std::optional<std::string> ReadLine(
      const std::string& prefix, absl::Duration deadline = absl::Seconds(20)) {
    const absl::Time end = absl::Now() + deadline;
    while (true) {
      for (size_t eol; (eol = buffer_.find('\n')) != std::string::npos;) {
        std::string line = buffer_.substr(0, eol);
        buffer_.erase(0, eol + 1);
        if (line.rfind(prefix, 0) == 0) return line.substr(prefix.size());
      }
      const int64_t wait = absl::ToInt64Milliseconds(end - absl::Now());
      pollfd fd{output_, POLLIN, 0};
      if (wait <= 0 || poll(&fd, 1, static_cast<int>(wait)) <= 0)
        return std::nullopt;
      char chunk[4096];
      const ssize_t n = read(output_, chunk, sizeof chunk);
      if (n <= 0) return std::nullopt;
      buffer_.append(chunk, static_cast<size_t>(n));
    }
  }

 private:
  pid_t pid_ = -1;
  int output_ = -1;
  std::string buffer_;
};

}  // namespace trunkline
