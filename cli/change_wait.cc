#include "cli/change_wait.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "cli/command.h"
#include "cli/exit_code.h"
#include "cli/flags.h"
#include "cli/format.h"
#include "cli/status_line.h"
#include "cli/stop_signals.h"
#include "common/clock.h"

namespace trunkline::cli {
namespace {

constexpr absl::Duration kBetweenLooks = absl::Milliseconds(100);
constexpr absl::Duration kLookPatience = absl::Seconds(5);

}  // namespace

void AddWaitFlags(CLI::App* command, WaitFlags* flags) {
  AddDurationFlag(command, "--timeout", &flags->timeout,
                  "How long to wait for the end; what was begun goes on after "
                  "it");
  command->add_flag("--no-wait", flags->no_wait,
                    "Return once it has begun, without waiting for its end");
}

absl::StatusOr<ChangeProgress> AwaitChange(const std::string& command,
                                           const AdminClient& client,
                                           absl::Duration timeout,
                                           const Judge& judge) {
  const Clock& clock = Clock::Monotonic();
  const absl::Time end = clock.Now() + timeout;
  StatusLine line;
  std::string last_note;
  ChangeProgress progress;
  for (int64_t tick = 0;; ++tick) {
    const absl::Duration left = end - clock.Now();
    const absl::StatusOr<admin::ShowResponse> show =
        client.Call(&AdminClient::Stub::Show, admin::ShowRequest(),
                    std::clamp(left, absl::Milliseconds(100), kLookPatience));
    std::string note;
    if (show.ok()) {
      progress = judge(*show);
      if (progress.over && !progress.failure.ok()) return progress.failure;
      if (progress.over) return progress;
      note = progress.blocked;
    } else if (absl::IsUnavailable(show.status()) ||
               absl::IsDeadlineExceeded(show.status())) {
      note = std::string(show.status().message());
    } else {
      return show.status();
    }
    // Each obstacle is said once; on a terminal the bar goes on below it.
    if (!note.empty() && note != last_note) {
      line.Clear();
      std::fprintf(stderr, "trunkline %s: waiting: %s\n", command.c_str(),
                   note.c_str());
    }
    last_note = note;
    line.Draw(ProgressText(progress, tick));
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(absl::StrCat(
          "not over after ", absl::FormatDuration(timeout),
          " and going on: ", progress.text, note.empty() ? "" : "; ", note));
    }
    if (StopSignals::Wait(std::min(kBetweenLooks, left))) {
      return absl::CancelledError(absl::StrCat(
          "the wait was interrupted; what was begun goes on: ", progress.text));
    }
  }
}

int RunWaiting(const std::string& command,
               const std::function<absl::Status()>& run) {
  StopSignals::Install();
  StopSignals::Orderly();
  const absl::Status status = run();
  if (status.ok()) return kExitOk;
  ReportFailure(command, status);
  return StopSignals::Received() != 0 && absl::IsCancelled(status)
             ? kExitInterrupted
             : kExitFailed;
}

}  // namespace trunkline::cli
