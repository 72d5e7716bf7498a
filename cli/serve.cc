#include "cli/serve.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "cli/announcement.h"
#include "cli/command.h"
#include "cli/exit_code.h"
#include "cli/flags.h"
#include "cli/stop_signals.h"
#include "common/log.h"

namespace trunkline::cli {
namespace {

// What an orderly stop may take beyond the time it grants to requests.
constexpr absl::Duration kStopGrace = absl::Seconds(10);

// SIGTERM when the parent dies, from now on. False when it is dead already.
bool FollowParent() {
  const pid_t parent = getppid();
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  // Between the two calls the parent may have died unnoticed.
  return getppid() == parent;
}

// After the orderly stop only memory and idle threads are left, which the
// kernel takes back faster than their destructors: the metrics endpoint alone
// needs two seconds to join its threads.
[[noreturn]] void EndProcess(int exit_code) {
  spdlog::shutdown();
  std::fflush(nullptr);
  _exit(exit_code);
}

class Announcer {
 public:
  explicit Announcer(const ServeFlags& flags) : flags_(flags) {}
  ~Announcer() { Close(); }

  void Loading(int64_t done, int64_t total) {
    Write({Announcement::Kind::kLoading, done, total, "", ""});
  }
  absl::Status Listening(const RunningServer& server) {
    Write({Announcement::Kind::kListening, 0, 0, server.address,
           server.metrics_address});
    Close();
    return flags_.address_file.empty()
               ? absl::OkStatus()
               : WriteAddressFile(flags_.address_file, server.address);
  }

 private:
  void Write(const Announcement& announcement) {
    if (flags_.announce_fd < 0 || closed_) return;
    const std::string line = FormatAnnouncement(announcement);
    // Lines are far below PIPE_BUF, so a pipe takes them whole. A reader that
    // has gone does not matter to the server.
    if (write(flags_.announce_fd, line.data(), line.size()) < 0) Close();
  }
  void Close() {
    if (flags_.announce_fd >= 0 && !closed_) close(flags_.announce_fd);
    closed_ = true;
  }

  const ServeFlags flags_;
  bool closed_ = false;
};

class Refusal {
 public:
  void Set(const absl::Status& status) {
    {
      std::lock_guard lock(mutex_);
      status_ = status;
    }
    StopSignals::Release();
  }
  absl::Status Get() {
    std::lock_guard lock(mutex_);
    return status_;
  }

 private:
  std::mutex mutex_;
  absl::Status status_;
};

}  // namespace

void AddServeFlags(CLI::App* command, ServeFlags* flags) {
  AddDurationFlag(command, "--drain-timeout", &flags->drain_timeout,
                  "How long running work may take to finish after SIGTERM or "
                  "ctrl-C; a second signal ends the process at once");
  command
      ->add_option("--address-file", flags->address_file,
                   "Written once the server listens: its address, one line")
      ->type_name("FILE");
  command
      ->add_option("--announce-fd", flags->announce_fd,
                   "A descriptor that gets JSON lines about loading and the "
                   "addresses, and is closed once the server listens")
      ->type_name("FD")
      ->check(CLI::Range(3, 1 << 20));
  command->add_flag("--exit-with-parent", flags->exit_with_parent,
                    "Stop in order when the parent process dies");
}

int Serve(const std::string& command, const ServeFlags& flags,
          const StartServer& start) {
  StopSignals::Install();
  signal(SIGPIPE, SIG_IGN);
  if (flags.exit_with_parent && !FollowParent()) return kExitFailed;
  Announcer announcer(flags);
  // Outlives the server: its threads may call until it is destroyed.
  auto refusal = std::make_shared<Refusal>();
  ServeHooks hooks;
  hooks.on_loading = [&announcer](int64_t done, int64_t total) {
    announcer.Loading(done, total);
  };
  hooks.on_refused = [refusal](const absl::Status& status) {
    refusal->Set(status);
  };
  absl::StatusOr<RunningServer> server = start(hooks);
  if (!server.ok()) return ReportFailure(command, server.status());
  StopSignals::Orderly();
  absl::Status failure = announcer.Listening(*server);
  if (failure.ok()) {
    StopSignals::Wait(absl::InfiniteDuration());
    failure = refusal->Get();
  }

  if (StopSignals::Received() != 0) {
    TL_LOG_INFO("stopping: signal {}, up to {} for running work",
                StopSignals::Received(),
                absl::FormatDuration(flags.drain_timeout));
  }
  StopSignals::EndProcessAfter(flags.drain_timeout + kStopGrace);
  const absl::Status drained = server->shutdown(
      failure.ok() ? flags.drain_timeout : absl::ZeroDuration());
  if (failure.ok()) failure = drained;
  if (failure.ok()) TL_LOG_INFO("stopped");
  EndProcess(failure.ok() ? kExitOk : ReportFailure(command, failure));
}

void SelectServing(CLI::App* command, SelectedCommand* selected,
                   std::function<absl::Status()> check, const ServeFlags* flags,
                   StartServer start) {
  command->callback([=, name = command->get_name()] {
    *selected = [=]() -> int {
      const absl::Status valid = check();
      if (!valid.ok()) return ReportUsage(name, std::string(valid.message()));
      return Serve(name, *flags, start);
    };
  });
}

}  // namespace trunkline::cli
