#include "cli/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace trunkline::cli {
namespace {

// Where the child finds its announcement pipe.
constexpr int kChildAnnounceFd = 3;
// The parent's ends are kept above the numbers that the child's are moved to.
constexpr int kLowestParentFd = 10;

class OwnedFd {
 public:
  explicit OwnedFd(int fd = -1) : fd_(fd) {}
  OwnedFd(OwnedFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  OwnedFd& operator=(OwnedFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~OwnedFd() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

absl::Status SystemError(const std::string& what) {
  return absl::InternalError(absl::StrCat(what, ": ", std::strerror(errno)));
}

absl::StatusOr<OwnedFd> MoveUp(int fd, const std::string& what) {
  if (fd < 0) return SystemError(what);
  OwnedFd low(fd);
  OwnedFd high(fcntl(fd, F_DUPFD_CLOEXEC, kLowestParentFd));
  if (high.get() < 0) return SystemError(what);
  return high;
}

struct Pipe {
  OwnedFd read, write;
};

absl::StatusOr<Pipe> MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return SystemError("pipe");
  OwnedFd other(ends[1]);
  Pipe pipe;
  TL_ASSIGN_OR_RETURN(pipe.read, MoveUp(ends[0], "pipe"));
  TL_ASSIGN_OR_RETURN(pipe.write, MoveUp(other.Release(), "pipe"));
  fcntl(pipe.read.get(), F_SETFL, O_NONBLOCK);
  return pipe;
}

// Between fork and exec: only calls that are safe in a signal handler.
[[noreturn]] void BecomeProgram(pid_t parent, int input, int output,
                                int announce, char* const* argv) {
  // Its own group: ctrl-C in the terminal is for the parent, which stops its
  // children in order.
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The parent may have died before the kernel was told: then nobody kills us.
  if (getppid() != parent) _exit(127);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  const bool moved =
      dup2(input, STDIN_FILENO) >= 0 && dup2(output, STDOUT_FILENO) >= 0 &&
      dup2(output, STDERR_FILENO) >= 0 && dup2(announce, kChildAnnounceFd) >= 0;
  if (moved) execv(argv[0], argv);
  constexpr char kFailed[] = "trunkline: the program can not be started\n";
  if (write(STDERR_FILENO, kFailed, sizeof(kFailed) - 1) < 0) _exit(126);
  _exit(127);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Spawn(
    const Spec& spec) {
  TL_ASSIGN_OR_RETURN(
      const OwnedFd input,
      MoveUp(open("/dev/null", O_RDONLY | O_CLOEXEC), "/dev/null"));
  TL_ASSIGN_OR_RETURN(Pipe announce, MakePipe());
  Pipe output;
  if (spec.log_file.empty()) {
    TL_ASSIGN_OR_RETURN(output, MakePipe());
  } else {
    const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC;
    absl::StatusOr<OwnedFd> log =
        MoveUp(open(spec.log_file.c_str(), flags, 0644), spec.log_file);
    if (!log.ok()) {
      return absl::FailedPreconditionError(
          absl::StrCat("log file ", log.status().message()));
    }
    output.write = *std::move(log);
  }

  std::vector<std::string> arguments = {spec.program};
  arguments.insert(arguments.end(), spec.arguments.begin(),
                   spec.arguments.end());
  arguments.insert(arguments.end(),
                   {"--announce-fd", absl::StrCat(kChildAnnounceFd)});
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);

  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return SystemError("fork");
  if (pid == 0) {
    BecomeProgram(parent, input.get(), output.write.get(), announce.write.get(),
                  argv.data());
  }
  return std::unique_ptr<ChildProcess>(
      new ChildProcess(pid, announce.read.Release(), output.read.Release()));
}

ChildProcess::~ChildProcess() {
  if (!Reap()) {
    kill(pid_, SIGKILL);
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
  }
  CloseAnnounce();
  CloseOutput();
}

void ChildProcess::CloseAnnounce() {
  if (announce_fd_ >= 0) close(announce_fd_);
  announce_fd_ = -1;
}

void ChildProcess::CloseOutput() {
  if (output_fd_ >= 0) close(output_fd_);
  output_fd_ = -1;
}

void ChildProcess::Signal(int signal) const {
  // Not reaped yet, so the number is still this child's.
  if (!ended()) kill(pid_, signal);
}

bool ChildProcess::Reap() {
  int status = 0;
  if (!ended() && waitpid(pid_, &status, WNOHANG) == pid_) status_ = status;
  return ended();
}

std::string ChildProcess::Ending() const {
  if (!ended()) return "still running";
  if (WIFSIGNALED(*status_)) {
    const int signal = WTERMSIG(*status_);
    return absl::StrCat("signal ", signal, " (", strsignal(signal), ")");
  }
  return absl::StrCat("exit code ", WEXITSTATUS(*status_));
}

std::string OwnProgramPath() {
  std::array<char, 4096> path{};
  const ssize_t size = readlink("/proc/self/exe", path.data(), path.size() - 1);
  const std::string found(path.data(), size < 0 ? 0 : size);
  // The file may have been replaced meanwhile; the link still starts it.
  return access(found.c_str(), X_OK) == 0 ? found : "/proc/self/exe";
}

}  // namespace trunkline::cli
