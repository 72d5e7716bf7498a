#pragma once

// A child process of `trunkline up`: started by fork and exec, killed by the
// kernel when its parent dies in any way, its output and announcements read
// through pipes.

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace trunkline::cli {

class ChildProcess {
 public:
  struct Spec {
    std::string program;                 // path
    std::vector<std::string> arguments;  // without argv[0]
    std::string log_file;  // gets stdout and stderr; empty: output_fd does
  };
  // Call only from the process's main thread: the kernel takes the death of the
  // thread that forked for the death of the parent. The child gets
  // --announce-fd.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Spawn(const Spec& spec);

  ~ChildProcess();  // SIGKILL when it still runs, then reaped
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  // Non-blocking read ends; -1 when there is none (any more).
  int announce_fd() const { return announce_fd_; }
  int output_fd() const { return output_fd_; }
  void CloseAnnounce();
  void CloseOutput();

  void Signal(int signal) const;  // nothing once it has ended
  // Whether it has ended by now; never waits.
  bool Reap();
  bool ended() const { return status_.has_value(); }
  // "exit code 1", "signal 9 (Killed)".
  std::string Ending() const;

 private:
  ChildProcess(pid_t pid, int announce_fd, int output_fd)
      : pid_(pid), announce_fd_(announce_fd), output_fd_(output_fd) {}
  const pid_t pid_;
  int announce_fd_, output_fd_;
  std::optional<int> status_;  // as waitpid gives it
};

// The path of the running program, for starting it again.
std::string OwnProgramPath();

}  // namespace trunkline::cli
