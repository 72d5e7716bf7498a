#include "tests/integration/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "common/check.h"
#include "tests/integration/eventually.h"

namespace trunkline::testing {
namespace {

void Redirect(const std::string& file, int target) {
  const int fd = open(file.empty() ? "/dev/null" : file.c_str(),
                      O_WRONLY | O_CREAT | O_APPEND, 0644);
  if (fd >= 0) dup2(fd, target);
}

}  // namespace

ChildProcess::ChildProcess(const Options& options) {
  int input[2];
  TL_CHECK_EQ(pipe(input), 0);
  pid_ = fork();
  TL_CHECK_GE(pid_, 0);
  if (pid_ == 0) {
    // A test that is itself killed leaves nothing behind.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(input[0], 0);
    close(input[0]);
    close(input[1]);
    Redirect(options.stdout_file, 1);
    Redirect(options.stderr_file, 2);
    for (const auto& [name, value] : options.environment)
      setenv(name.c_str(), value.c_str(), 1);
    std::vector<char*> argv;
    for (const std::string& a : options.argv)
      argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    std::fprintf(stderr, "can not start %s: %s\n", argv[0],
                 std::strerror(errno));
    _exit(127);
  }
  close(input[0]);
  const ssize_t written =
      write(input[1], options.stdin_text.data(), options.stdin_text.size());
  TL_CHECK_EQ(written, static_cast<ssize_t>(options.stdin_text.size()));
  close(input[1]);
}

ChildProcess::~ChildProcess() {
  if (status_.has_value()) return;
  kill(pid_, SIGKILL);
  int status = 0;
  waitpid(pid_, &status, 0);
}

void ChildProcess::Signal(int signal) const {
  if (!status_.has_value()) kill(pid_, signal);
}

std::optional<int> ChildProcess::Wait(std::chrono::milliseconds limit) {
  Eventually(limit, [this] { return !Running(); });
  return status_;
}

bool ChildProcess::Running() {
  if (status_.has_value()) return false;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) == pid_) status_ = status;
  return !status_.has_value();
}

RunResult RunProgram(const std::vector<std::string>& argv,
                     std::chrono::milliseconds limit,
                     const std::string& stdin_text) {
  TempDir dir;
  ChildProcess child({.argv = argv,
                      .environment = {},
                      .stdout_file = dir.path() + "/out",
                      .stderr_file = dir.path() + "/err",
                      .stdin_text = stdin_text});
  RunResult result;
  if (const auto status = child.Wait(limit)) {
    if (WIFEXITED(*status)) result.exit_code = WEXITSTATUS(*status);
    if (WIFSIGNALED(*status)) result.signal = WTERMSIG(*status);
  }
  result.out = ReadFile(dir.path() + "/out");
  result.err = ReadFile(dir.path() + "/err");
  return result;
}

TempDir::TempDir() {
  std::string pattern =
      (std::filesystem::temp_directory_path() / "trunkline-test.XXXXXX")
          .string();
  TL_CHECK(mkdtemp(pattern.data()) != nullptr) << pattern;
  path_ = pattern;
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream content;
  content << in.rdbuf();
  return content.str();
}

void WriteFile(const std::string& path, const std::string& content) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << content;
}

}  // namespace trunkline::testing
