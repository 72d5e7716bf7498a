// trunkline workers, drain, undrain.

#include <cstdio>
#include <memory>
#include <string>

#include "cli/admin_client.h"
#include "cli/change_wait.h"
#include "cli/command.h"
#include "cli/exit_code.h"
#include "cli/message_json.h"
#include "cli/worker_report.h"
#include "common/status_macros.h"

namespace trunkline::cli {
namespace {

using Stub = AdminClient::Stub;

struct DrainFlags {
  AdminFlags admin;
  WaitFlags wait;
  std::string worker;
};

absl::Status Workers(const DrainFlags& flags) {
  const AdminClient client(flags.admin.coordinator);
  TL_ASSIGN_OR_RETURN(
      const admin::ListWorkersResponse workers,
      client.Call(&Stub::ListWorkers, admin::ListWorkersRequest()));
  const std::string text = flags.admin.as_json
                               ? MessageJson(workers).dump(2) + "\n"
                               : WorkersText(workers);
  std::fputs(text.c_str(), stdout);
  return absl::OkStatus();
}

// The worker as the coordinator sees it in the end, or the sentence about it.
void PrintWorker(const admin::ListWorkersResponse& workers,
                 const DrainFlags& flags, const std::string& sentence) {
  if (!flags.admin.as_json) {
    std::printf("%s\n", sentence.c_str());
    return;
  }
  admin::ListWorkersResponse one;
  for (const admin::WorkerInfo& info : workers.workers()) {
    if (info.worker().name() == flags.worker) *one.add_workers() = info;
  }
  one.set_blocked(workers.blocked());
  std::printf("%s\n", MessageJson(one).dump(2).c_str());
}

absl::Status Drain(const DrainFlags& flags) {
  const AdminClient client(flags.admin.coordinator);
  admin::DrainRequest request;
  request.set_worker(flags.worker);
  TL_ASSIGN_OR_RETURN(admin::ListWorkersResponse workers,
                      client.Call(&Stub::Drain, request));
  std::string sentence = flags.worker + ": draining has begun";
  if (!flags.wait.no_wait) {
    TL_ASSIGN_OR_RETURN(const ChangeProgress progress,
                        AwaitChange("drain", client, flags.wait.timeout,
                                    [&](const admin::ShowResponse& show) {
                                      return JudgeDrain(show, flags.worker);
                                    }));
    sentence = progress.text;
    TL_ASSIGN_OR_RETURN(
        workers, client.Call(&Stub::ListWorkers, admin::ListWorkersRequest()));
  }
  PrintWorker(workers, flags, sentence);
  return absl::OkStatus();
}

absl::Status Undrain(const DrainFlags& flags) {
  const AdminClient client(flags.admin.coordinator);
  admin::DrainRequest request;
  request.set_worker(flags.worker);
  TL_ASSIGN_OR_RETURN(const admin::ListWorkersResponse workers,
                      client.Call(&Stub::Undrain, request));
  PrintWorker(workers, flags, flags.worker + ": may be given experts again");
  return absl::OkStatus();
}

void AddWorker(CLI::App* command, DrainFlags* flags) {
  command->add_option("WORKER", flags->worker, "Its name, as workers shows it")
      ->required();
}

}  // namespace

void AddDrainCommands(CLI::App* program, SelectedCommand* selected) {
  const auto flags = std::make_shared<DrainFlags>();
  CLI::App* workers = program->add_subcommand(
      "workers", "The cluster's workers and what they hold");
  workers->footer("Example:\n  trunkline workers --coordinator 10.0.0.1:7070");
  workers->callback([selected, flags] {
    *selected = [flags]() -> int {
      const absl::Status status = Workers(*flags);
      return status.ok() ? kExitOk : ReportFailure("workers", status);
    };
  });
  CLI::App* drain = program->add_subcommand(
      "drain", "Take a worker out of service, and wait until it may stop");
  drain->footer(
      "An expert worker's sole copies are loaded elsewhere first; it serves "
      "until no step needs\nit. The drain lasts until undrain, also over "
      "restarts of the worker.\n"
      "Examples:\n"
      "  trunkline drain box-2 --coordinator 10.0.0.1:7070 && ssh box-2 "
      "systemctl stop trunkline\n"
      "  trunkline drain box-2 --no-wait\n"
      "Exit codes: 0 safe to stop (with --no-wait: begun), 1 failed or not "
      "over in time, 2 wrong\nusage, 130 the wait was interrupted; the drain "
      "goes on.");
  AddWaitFlags(drain, &flags->wait);
  drain->callback([selected, flags] {
    *selected = [flags] {
      return RunWaiting("drain", [&] { return Drain(*flags); });
    };
  });
  CLI::App* undrain = program->add_subcommand(
      "undrain", "Put a drained worker back in service");
  undrain->footer(
      "It holds nothing until a rebalance, a repair or an apply places experts "
      "on it.\n"
      "Example:\n  trunkline undrain box-2 --coordinator 10.0.0.1:7070");
  undrain->callback([selected, flags] {
    *selected = [flags]() -> int {
      const absl::Status status = Undrain(*flags);
      return status.ok() ? kExitOk : ReportFailure("undrain", status);
    };
  });
  for (CLI::App* command : {workers, drain, undrain})
    AddAdminFlags(command, &flags->admin);
  AddWorker(drain, flags.get());
  AddWorker(undrain, flags.get());
}

}  // namespace trunkline::cli
