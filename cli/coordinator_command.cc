// trunkline coordinator: flags of CoordinatorOptions, one each.

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/serve.h"
#include "cli/worker_flags.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "coordinator/coordinator_server.h"

namespace trunkline::cli {
namespace {

using coordinator::CoordinatorOptions;
using coordinator::CoordinatorServer;

struct CoordinatorFlags {
  CoordinatorOptions options;
  ServeFlags serve;
};

void AddFlags(CLI::App* command, CoordinatorFlags* flags) {
  CoordinatorOptions* o = &flags->options;
  AddAddressFlag(command, "--listen", &o->listen, Port::kAny,
                 "Where workers and tools connect; port 0: a free one");
  command
      ->add_option("--state-file", o->state_file,
                   "SQLite file that keeps the cluster over restarts (default: "
                   "memory only)")
      ->type_name("FILE");
  command
      ->add_option("--store", o->store,
                   "Where the cluster is kept over restarts: sqlite:FILE, or "
                   "etcd://HOST:PORT,.../PREFIX, which several coordinators "
                   "may share (one leads)")
      ->type_name("STORE");
  command
      ->add_option("--advertise-host", o->advertise_host,
                   "The host by which others reach this coordinator instead of "
                   "the one listened on; followers name it")
      ->type_name("HOST");
  AddDurationFlag(command, "--store-lease", &o->store_lease,
                  "etcd: a leader that is silent for so long is replaced; "
                  "whole seconds");
  command
      ->add_option("--expert-workers", o->expert_workers,
                   "The first placement is made when so many have joined")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{65536}));
  command
      ->add_option("--replicas", o->replicas,
                   "Copies of every expert, each on another worker")
      ->type_name("R")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{65536}));
  AddNumericsFlag(command, &o->numerics,
                  "Numerics class of all workers, which those with auto take "
                  "over; auto: the first worker's");
  AddDurationFlag(command, "--lease", &o->lease,
                  "A worker that is silent for so long is out");
  AddDurationFlag(command, "--repair-delay", &o->repair_delay,
                  "How long a lost worker may take to come back before its "
                  "experts are placed elsewhere");
  AddDurationFlag(command, "--redundancy-delay", &o->redundancy_delay,
                  "The same for experts of which another copy lives");
  AddDurationFlag(command, "--stage-timeout", &o->stage_timeout,
                  "A placement that is not loaded by then is abandoned");
  command
      ->add_option("--max-watchers", o->watchers_max,
                   "Followers of the cluster's view; more are refused")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  o->log_level = "info";
  AddMetricsAndLogFlags(command, &o->metrics, &o->log_level);
  AddServeFlags(command, &flags->serve);
}

absl::Status Check(const CoordinatorOptions& options) {
  if (options.replicas > options.expert_workers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--replicas is ", options.replicas, ", but --expert-workers is ",
        options.expert_workers, ": copies of one expert never share a worker"));
  }
  return options.Validate();
}

absl::StatusOr<RunningServer> Start(const CoordinatorOptions& options) {
  TL_RETURN_IF_ERROR(InitLogging("coordinator", "", options.log_level));
  TL_ASSIGN_OR_RETURN(std::unique_ptr<CoordinatorServer> started,
                      CoordinatorServer::Start(options));
  std::string address = started->address();
  return Running(std::move(started), std::move(address),
                 [](CoordinatorServer* server, absl::Duration patience) {
                   server->Shutdown(patience);
                   return absl::OkStatus();
                 });
}

}  // namespace

void AddCoordinatorCommand(CLI::App* program, SelectedCommand* selected) {
  CLI::App* command = program->add_subcommand(
      "coordinator", "Decide which worker holds which expert");
  command->footer(
      "Examples:\n"
      "  trunkline coordinator --listen 0.0.0.0:7070 --expert-workers 3\n"
      "  trunkline coordinator --expert-workers 3 --replicas 2 "
      "--state-file /var/lib/trunkline/state.db\n"
      "  trunkline coordinator --listen 0.0.0.0:7070 --advertise-host 10.0.0.1 "
      "\\\n      --expert-workers 3 --store "
      "etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379/prod");
  auto flags = std::make_shared<CoordinatorFlags>();
  AddFlags(command, flags.get());
  SelectServing(
      command, selected, [flags] { return Check(flags->options); },
      &flags->serve,
      [flags](const ServeHooks&) { return Start(flags->options); });
}

}  // namespace trunkline::cli
