#pragma once

// A child process of a test: output to files, killed by pid when the test ends
// in any way.

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace trunkline::testing {

class ChildProcess {
 public:
  struct Options {
    std::vector<std::string> argv;  // argv[0] is the program's path
    std::vector<std::pair<std::string, std::string>>
        environment;                       // added to the test's own
    std::string stdout_file, stderr_file;  // empty: /dev/null
    std::string stdin_text;                // small: at most a pipe's buffer
  };

  explicit ChildProcess(const Options& options);
  ~ChildProcess();  // SIGKILL when it still runs, then reaped
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  void Signal(int signal) const;
  // The exit status as waitpid gives it, once it has ended within the limit.
  std::optional<int> Wait(std::chrono::milliseconds limit);
  bool Running();

 private:
  pid_t pid_ = -1;
  std::optional<int> status_;
};

// Runs a program to its end (killed after `limit`).
struct RunResult {
  int exit_code = -1;  // -1: did not end by itself
  int signal = 0;
  std::string out, err;
};
RunResult RunProgram(const std::vector<std::string>& argv,
                     std::chrono::milliseconds limit,
                     const std::string& stdin_text = "");

// A folder that goes away with the object.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string ReadFile(const std::string& path);  // "" when there is none
void WriteFile(const std::string& path, const std::string& content);

}  // namespace trunkline::testing
