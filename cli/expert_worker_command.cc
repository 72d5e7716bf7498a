// trunkline expert-worker: flags of ExpertOptions, one each.

#include <memory>
#include <string>

#include "cli/command.h"
#include "cli/flags.h"
#include "cli/serve.h"
#include "cli/worker_flags.h"
#include "common/status_macros.h"
#include "expert_worker/expert_server.h"

namespace trunkline::cli {
namespace {

using expert::ExpertOptions;
using expert::ExpertServer;

struct ExpertFlags {
  ExpertOptions options;
  int64_t held_bytes = 0;
  ServeFlags serve;
};

void AddPlaceFlags(CLI::App* command, ExpertOptions* o) {
  command
      ->add_option("--model", o->model_dir,
                   "Hugging Face checkpoint directory, the same on every "
                   "worker")
      ->type_name("DIR")
      ->required();
  AddAddressListFlag(command, "--coordinator", &o->coordinator,
                     "The cluster to join: its coordinator, or all of them")
      ->required();
  command
      ->add_option("--name", o->name,
                   "Unique in the cluster and kept over restarts (default: "
                   "from host and port)")
      ->type_name("NAME");
  AddAddressFlag(command, "--listen", &o->listen, Port::kAny,
                 "Where trunk workers connect; port 0: a free one");
  command
      ->add_option("--advertise-host", o->advertise_host,
                   "The host trunk workers dial instead of the one listened "
                   "on")
      ->type_name("HOST");
  command
      ->add_option("--failure-domain", o->failure_domain,
                   "Copies of an expert go to two of these where there are two "
                   "(default: the host's name)")
      ->type_name("NAME");
}

void AddCapacityFlags(CLI::App* command, ExpertFlags* flags) {
  ExpertOptions* o = &flags->options;
  AddBytesFlag(command, "--memory-limit", &o->memory_limit_bytes,
               "For experts; 0: not limited");
  flags->held_bytes = static_cast<int64_t>(o->limits.held_bytes_max);
  AddBytesFlag(command, "--held-bytes", &flags->held_bytes,
               "Waiting frames and answers not taken yet; more is refused");
  command
      ->add_option("--queued-frames", o->limits.queued_frames_max,
                   "Frames that may wait; more are refused")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 24));
  command
      ->add_option("--batch-routes", o->limits.batch_routes_max,
                   "Waiting frames are computed together up to so many routes")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 24));
  command
      ->add_option("--answer", o->answer,
                   "What answers hold: auto or gated-f32; the text is the same")
      ->type_name("FORM")
      ->capture_default_str();
  AddDurationFlag(
      command, "--handover-timeout", &o->handover_timeout,
      "On a stop, how much of --drain-timeout may go by until the "
      "experts are placed elsewhere; 0: leave at once (default: all "
      "of it)");
}

absl::Status Check(ExpertFlags* flags) {
  flags->options.limits.held_bytes_max = static_cast<size_t>(flags->held_bytes);
  TL_RETURN_IF_ERROR(CheckTransportBetweenProcesses(flags->options.transport));
  return flags->options.Validate();
}

absl::StatusOr<RunningServer> Start(ExpertOptions options,
                                    const ServeHooks& hooks) {
  options.on_refused = hooks.on_refused;
  TL_ASSIGN_OR_RETURN(std::unique_ptr<ExpertServer> started,
                      ExpertServer::Start(options));
  std::string address = started->data_address();
  return Running(std::move(started), std::move(address),
                 [](ExpertServer* server, absl::Duration patience) {
                   return server->Shutdown(patience);
                 });
}

}  // namespace

void AddExpertWorkerCommand(CLI::App* program, SelectedCommand* selected) {
  CLI::App* command = program->add_subcommand(
      "expert-worker", "Hold and compute a placed share of the experts");
  command->footer(
      "Example:\n"
      "  trunkline expert-worker --model DIR --coordinator 10.0.0.1:7070 "
      "--name box-2 \\\n"
      "      --listen 0.0.0.0:7090 --advertise-host 10.0.0.2");
  auto flags = std::make_shared<ExpertFlags>();
  ExpertOptions* o = &flags->options;
  AddPlaceFlags(command, o);
  AddComputeFlags(command, &o->threads, &o->cores, &o->simd);
  command->add_flag("--shared-cores", o->shared_cores,
                    "A trunk worker computes on the same cpus: work that "
                    "arrives from it waits for its turn there, instead of "
                    "interrupting the trunk while it still sends to others");
  AddNumericsFlag(command, &o->numerics,
                  "Numerics class, the same on all workers; auto: the "
                  "cluster's");
  AddCapacityFlags(command, flags.get());
  AddTransportFlags(command, &o->transport, &o->transport_options);
  AddMetricsAndLogFlags(command, &o->metrics_listen, &o->log_level);
  AddServeFlags(command, &flags->serve);
  SelectServing(
      command, selected, [flags] { return Check(flags.get()); }, &flags->serve,
      [flags](const ServeHooks& hooks) {
        return Start(flags->options, hooks);
      });
}

}  // namespace trunkline::cli
