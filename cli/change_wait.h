#pragma once

// Waiting for a placement change or a drain with the real state in view: looks
// at the coordinator until it is over, with a bar on stderr when that is a
// terminal.

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cli/admin_client.h"
#include "cli/change_progress.h"

namespace trunkline::cli {

struct WaitFlags {
  absl::Duration timeout = absl::Minutes(15);
  bool no_wait = false;
};
// --timeout and --no-wait.
void AddWaitFlags(CLI::App* command, WaitFlags* flags);

using Judge = std::function<ChangeProgress(const admin::ShowResponse&)>;

// The last progress, when it ended well. DEADLINE_EXCEEDED after the timeout,
// CANCELLED after a stop signal: both say that the change itself goes on. A
// coordinator that is out of reach for a while is waited for.
absl::StatusOr<ChangeProgress> AwaitChange(const std::string& command,
                                           const AdminClient& client,
                                           absl::Duration timeout,
                                           const Judge& judge);

// What `run` returned as the exit code, after stderr got the reason. Stop
// signals end the wait in AwaitChange.
int RunWaiting(const std::string& command,
               const std::function<absl::Status()>& run);

}  // namespace trunkline::cli
