#include "cli/supervisor.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/announcement.h"
#include "cli/command.h"
#include "cli/exit_code.h"
#include "cli/format.h"
#include "common/clock.h"
#include "common/status_macros.h"

namespace trunkline::cli {
namespace {

constexpr absl::Duration kStageGrace = absl::Seconds(12);
constexpr int kRedrawMs = 150;
constexpr int kBarWidth = 24;
constexpr size_t kLogTailLines = 8;

absl::Time Now() { return Clock::Monotonic().Now(); }

std::string TailOfFile(const std::string& path) {
  std::ifstream file(path);
  std::deque<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back("  " + line);
    if (lines.size() > kLogTailLines) lines.pop_front();
  }
  return absl::StrJoin(lines, "\n");
}

// Everything a non-blocking descriptor holds now. False at its end.
bool ReadAvailable(int fd, std::string* bytes) {
  char buffer[16384];
  for (;;) {
    const ssize_t n = read(fd, buffer, sizeof(buffer));
    if (n > 0) {
      bytes->append(buffer, static_cast<size_t>(n));
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
      return false;
    } else if (errno == EAGAIN) {
      return true;
    }
  }
}

}  // namespace

Supervisor::Supervisor(const UpFlags& flags)
    : flags_(flags), program_(OwnProgramPath()), started_(Now()) {}

Supervisor::~Supervisor() {
  monitor_.reset();  // writes to wake_fd_
  if (signal_fd_ >= 0) close(signal_fd_);
  if (wake_fd_ >= 0) close(wake_fd_);
}

absl::Status Supervisor::CatchSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) {
    sigaddset(&set, signal);
  }
  // Threads that libraries start later inherit the mask.
  sigprocmask(SIG_BLOCK, &set, nullptr);
  signal_fd_ = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
  wake_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (signal_fd_ < 0 || wake_fd_ < 0) {
    return absl::InternalError(
        absl::StrCat("signalfd or eventfd: ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

int Supervisor::Run() {
  absl::Status status = CatchSignals();
  if (status.ok() && !flags_.log_dir.empty()) {
    std::error_code error;
    std::filesystem::create_directories(flags_.log_dir, error);
    if (error) {
      status = absl::FailedPreconditionError(
          absl::StrCat("--log-dir ", flags_.log_dir, ": ", error.message()));
    }
  }
  for (UpProcess& plan : PlanCoordinators(flags_)) {
    if (status.ok()) status = Start(std::move(plan));
  }
  while (!stopping_ || !AllEnded()) {
    if (status.ok() && !stopping_) status = Advance();
    if (!status.ok() && !stopping_) {
      status_line_.Clear();
      ReportFailure("up", status);
      Stop(kExitFailed);
    }
    if (stopping_) AdvanceStop();
    if (stopping_ && AllEnded()) break;
    DrawProgress();
    WaitForEvents();
  }
  status_line_.Clear();
  Say("all processes have ended");
  return exit_code_;
}

absl::Status Supervisor::Start(UpProcess plan) {
  ChildProcess::Spec spec;
  spec.program = program_;
  spec.arguments = plan.arguments;
  if (!flags_.log_dir.empty()) {
    spec.log_file = LogFile(plan.name);
    spec.arguments.insert(
        spec.arguments.end(),
        {"--address-file",
         absl::StrCat(flags_.log_dir, "/", plan.name, ".address")});
  }
  auto member = std::make_unique<Member>();
  member->plan = std::move(plan);
  TL_ASSIGN_OR_RETURN(member->process, ChildProcess::Spawn(spec));
  members_.push_back(std::move(member));
  return absl::OkStatus();
}

absl::Status Supervisor::StartWorkers() {
  workers_started_ = true;
  const int cpus = static_cast<int>(std::thread::hardware_concurrency());
  for (UpProcess& plan :
       PlanWorkers(flags_, Coordinators(), std::max(1, cpus))) {
    TL_RETURN_IF_ERROR(Start(std::move(plan)));
  }
  return absl::OkStatus();
}

absl::Status Supervisor::Advance() {
  if (!workers_started_ && AllListen()) {
    TL_RETURN_IF_ERROR(StartWorkers());
  }
  if (ready_) return absl::OkStatus();
  if (monitor_ == nullptr && workers_started_ && AllListen()) {
    std::vector<std::string> trunks;
    for (const auto& member : members_) {
      if (member->plan.role == UpRole::kTrunk) {
        trunks.push_back(member->address);
      }
    }
    // From here on there is a second thread, and no process is started.
    monitor_ = std::make_unique<ClusterMonitor>(Coordinators(),
                                                std::move(trunks), wake_fd_);
  }
  if (monitor_ != nullptr && monitor_->Get().ready) return AnnounceReady();
  if (Now() - started_ > flags_.wait_ready) {
    return absl::DeadlineExceededError(
        absl::StrCat("the cluster is not ready after --wait-ready ",
                     absl::FormatDuration(flags_.wait_ready), ": ",
                     monitor_ == nullptr ? "not every process listens yet"
                                         : monitor_->Get().waiting_for));
  }
  return absl::OkStatus();
}

absl::Status Supervisor::AnnounceReady() {
  ready_ = true;
  std::vector<std::string> addresses;
  for (const auto& member : members_) {
    if (member->plan.role == UpRole::kTrunk) {
      addresses.push_back(member->address);
    }
  }
  Say(absl::StrCat("ready after ", HumanDuration(Now() - started_),
                   "; try:\n  trunkline generate --server ", addresses.front(),
                   " \"In the beginning\"\nctrl-C stops everything"));
  return flags_.address_file.empty()
             ? absl::OkStatus()
             : WriteAddressFile(flags_.address_file,
                                absl::StrJoin(addresses, "\n"));
}

std::string Supervisor::Coordinators() const {
  std::vector<std::string> addresses;
  for (const auto& member : members_) {
    if (member->plan.role == UpRole::kCoordinator) {
      addresses.push_back(member->address);
    }
  }
  return absl::StrJoin(addresses, ",");
}

bool Supervisor::AllListen() const {
  return std::all_of(members_.begin(), members_.end(), [](const auto& member) {
    return !member->address.empty();
  });
}

void Supervisor::DrawProgress() {
  if (ready_ || stopping_ || !status_line_.on_terminal()) return;
  int64_t done = 0, total = 0;
  std::string doing = "starting";
  for (const auto& member : members_) {
    done += member->bytes_done;
    total += member->bytes_total;
  }
  if (total > 0) doing = "loading the trunk";
  if (monitor_ != nullptr) {
    const ClusterMonitor::Snapshot seen = monitor_->Get();
    done += seen.bytes_loaded;
    total += seen.bytes_total;
    if (!seen.waiting_for.empty()) doing = seen.waiting_for;
  }
  status_line_.Draw(absl::StrCat(
      ProgressBar(done, total, kBarWidth, ++ticks_), " ",
      total > 0
          ? absl::StrCat(HumanBytes(done), " of ", HumanBytes(total), ", ")
          : "",
      doing));
}

int Supervisor::PollTimeoutMs() const {
  absl::Duration wait = absl::InfiniteDuration();
  if (stopping_) wait = std::min(wait, stop_stage_end_ - Now());
  if (!stopping_ && !ready_) {
    wait = std::min(wait, flags_.wait_ready - (Now() - started_));
    if (status_line_.on_terminal()) {
      wait = std::min(wait, absl::Milliseconds(kRedrawMs));
    }
  }
  if (wait == absl::InfiniteDuration()) return -1;
  // One more, so that the moment has passed when poll returns.
  return static_cast<int>(std::clamp<int64_t>(
      absl::ToInt64Milliseconds(wait) + 1, 0, 60 * 60 * 1000));
}

void Supervisor::WaitForEvents() {
  std::vector<pollfd> fds = {{signal_fd_, POLLIN, 0}, {wake_fd_, POLLIN, 0}};
  for (const auto& member : members_) {  // poll skips negative descriptors
    fds.push_back({member->process->announce_fd(), POLLIN, 0});
    fds.push_back({member->process->output_fd(), POLLIN, 0});
  }
  if (poll(fds.data(), fds.size(), PollTimeoutMs()) < 0) return;
  if (fds[0].revents != 0) TakeSignals();
  if (fds[1].revents != 0) {
    uint64_t count = 0;
    if (read(wake_fd_, &count, sizeof(count)) < 0) count = 0;
  }
  for (const auto& member : members_) {
    TakeAnnouncements(member.get());
    TakeOutput(member.get());
  }
  TakeEnds();
}

void Supervisor::TakeSignals() {
  signalfd_siginfo info;
  while (read(signal_fd_, &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo == SIGCHLD) continue;
    if (!stopping_) {
      Complain("stopping; once more ends everything at once");
      Stop(kExitOk);
      continue;
    }
    for (const auto& member : members_) member->process->Signal(SIGKILL);
    exit_code_ = kExitInterrupted;
  }
}

void Supervisor::TakeAnnouncements(Member* member) {
  if (member->process->announce_fd() < 0) return;
  std::string bytes;
  const bool open = ReadAvailable(member->process->announce_fd(), &bytes);
  for (const std::string& line : member->announcements.Append(bytes)) {
    const auto announcement = ParseAnnouncement(line);
    if (!announcement.ok()) {
      Complain(absl::StrCat(member->plan.name, ": ",
                            announcement.status().message()));
    } else if (announcement->kind == Announcement::Kind::kLoading) {
      member->bytes_done = announcement->bytes_done;
      member->bytes_total = announcement->bytes_total;
    } else {
      member->address = announcement->address;
      member->metrics_address = announcement->metrics_address;
      Say(absl::StrFormat(
          "%-12s %-28s pid %-8d%s", member->plan.name, member->address,
          static_cast<int>(member->process->pid()),
          member->metrics_address.empty()
              ? ""
              : absl::StrCat(" http://", member->metrics_address, "/metrics")));
    }
  }
  if (!open) member->process->CloseAnnounce();
}

void Supervisor::TakeOutput(Member* member) {
  if (member->process->output_fd() < 0) return;
  std::string bytes;
  const bool open = ReadAvailable(member->process->output_fd(), &bytes);
  std::vector<std::string> lines = member->output.Append(bytes);
  if (!open) {
    for (std::string& line : member->output.Finish()) {
      lines.push_back(std::move(line));
    }
    member->process->CloseOutput();
  }
  for (const std::string& line : lines) {
    Complain(absl::StrCat("[", member->plan.name, "] ", line));
  }
}

void Supervisor::TakeEnds() {
  for (const auto& member : members_) {
    if (member->end_reported || !member->process->Reap()) continue;
    member->end_reported = true;
    TakeOutput(member.get());  // what it wrote last
    if (!stopping_) OnUnexpectedEnd(*member);
  }
}

void Supervisor::OnUnexpectedEnd(const Member& member) {
  Complain(absl::StrCat(member.plan.name, " (pid ", member.process->pid(),
                        ") ended: ", member.process->Ending()));
  if (!flags_.log_dir.empty()) {
    Complain(absl::StrCat("the end of ", LogFile(member.plan.name), ":\n",
                          TailOfFile(LogFile(member.plan.name))));
  }
  if (!flags_.keep_going || AllEnded()) Stop(kExitFailed);
}

void Supervisor::Stop(int exit_code) {
  stopping_ = true;
  exit_code_ = exit_code;
  stop_stage_ = UpRole::kTrunk;
  stage_signalled_ = false;
}

void Supervisor::AdvanceStop() {
  for (;;) {
    const auto in_stage = [this](const auto& member) {
      return member->plan.role == stop_stage_ && !member->process->ended();
    };
    if (!stage_signalled_) {
      for (const auto& member : members_) {
        if (in_stage(member)) member->process->Signal(SIGTERM);
      }
      stage_signalled_ = true;
      stop_stage_end_ = Now() + flags_.drain_timeout + kStageGrace;
    }
    if (std::any_of(members_.begin(), members_.end(), in_stage)) {
      if (Now() < stop_stage_end_) return;
      for (const auto& member : members_) {
        if (!in_stage(member)) continue;
        Complain(member->plan.name + " does not stop: killed");
        member->process->Signal(SIGKILL);
      }
      // A killed process ends; the next look is after its SIGCHLD.
      stop_stage_end_ = absl::InfiniteFuture();
      return;
    }
    if (stop_stage_ == UpRole::kCoordinator) return;
    stop_stage_ =
        stop_stage_ == UpRole::kTrunk ? UpRole::kExpert : UpRole::kCoordinator;
    stage_signalled_ = false;
  }
}

bool Supervisor::AllEnded() const {
  return std::all_of(members_.begin(), members_.end(), [](const auto& member) {
    return member->process->ended();
  });
}

std::string Supervisor::LogFile(const std::string& name) const {
  return absl::StrCat(flags_.log_dir, "/", name, ".log");
}

void Supervisor::Say(const std::string& line) {
  status_line_.Clear();
  std::fprintf(stdout, "%s\n", line.c_str());
  std::fflush(stdout);
}

void Supervisor::Complain(const std::string& line) {
  status_line_.Clear();
  std::fprintf(stderr, "%s\n", line.c_str());
}

}  // namespace trunkline::cli
