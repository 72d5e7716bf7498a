// trunkline trunk-worker: flags of TrunkOptions, one each.

#include <memory>
#include <string>

#include "cli/command.h"
#include "cli/contract_spec.h"
#include "cli/flags.h"
#include "cli/serve.h"
#include "cli/worker_flags.h"
#include "common/status_macros.h"
#include "trunk_worker/trunk_server.h"

namespace trunkline::cli {
namespace {

using trunk::TrunkOptions;
using trunk::TrunkServer;

struct TrunkFlags {
  TrunkOptions options;
  std::string admission = "dropless";
  ServeFlags serve;
};

void AddPlaceFlags(CLI::App* command, TrunkOptions* o) {
  command
      ->add_option("--model", o->model_dir,
                   "Hugging Face checkpoint directory, the same on every "
                   "worker")
      ->type_name("DIR")
      ->required();
  AddAddressListFlag(command, "--coordinator", &o->coordinator,
                     "The cluster to join: its coordinator, or all of them "
                     "(default: none; the routed experts run in this process "
                     "too)");
  command
      ->add_option("--name", o->name,
                   "Unique in the cluster (default: from host and port)")
      ->type_name("NAME");
  o->listen = "127.0.0.1:7080";
  AddAddressFlag(command, "--listen", &o->listen, Port::kAny,
                 "Where clients connect; port 0: a free one");
  command
      ->add_option("--advertise-host", o->advertise_host,
                   "The host others see instead of the one listened on")
      ->type_name("HOST");
}

void AddCapacityFlags(CLI::App* command, TrunkOptions* o) {
  const auto add = [command](const char* name, int64_t* value, int64_t least,
                             int64_t most, const char* help) {
    command->add_option(name, *value, help)
        ->type_name("N")
        ->capture_default_str()
        ->check(CLI::Range(least, most));
  };
  add("--max-sequences", &o->sequences_max, 1, 65536,
      "Sequences that run at one time");
  command
      ->add_option("--max-sequence-tokens", o->sequence_tokens_max,
                   "Prompt and output tokens of one sequence (default: what "
                   "the model was made for, at most 8192)")
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  AddBytesFlag(command, "--state-memory", &o->state_memory_bytes,
               "For keys, values and mamba states; 0: what all sequences at "
               "full length need, at most half of the machine's memory");
  add("--queue", &o->queue_max, 0, 1 << 20,
      "Requests that wait for memory when they asked to");
  add("--rows-per-step", &o->rows_per_step, 2, 65536,
      "Rows of one step over all sequences");
  add("--prefill-chunk", &o->prefill_chunk, 1, 65536,
      "Rows of one prompt in one step");
  AddDurationFlag(command, "--request-time-max", &o->request_time_max,
                  "The longest a request may take");
  AddDurationFlag(
      command, "--unready-patience", &o->unready_patience,
      "How long requests are held while experts are out of reach, then "
      "they end with UNAVAILABLE");
  add("--canary-tokens", &o->canary_tokens, 0, 65536,
      "Prompt tokens of the canary whose bits are compared after each "
      "placement "
      "change; 0: none, and an expert that is wrong after a change is noticed "
      "by nobody");
  AddDurationFlag(command, "--worker-deadline", &o->worker_deadline,
                  "From rows sent to an expert worker to its answer");
  AddDurationFlag(command, "--exchange-deadline", &o->exchange_deadline,
                  "For one layer's experts, with all retries");
  AddBytesFlag(command, "--stream-buffer", &o->stream_buffer_bytes,
               "Output that a client may leave unread before its stream ends");
}

void AddRoutingFlags(CLI::App* command, TrunkFlags* flags) {
  command->add_option("--admission", flags->admission, kServingAdmissionHelp)
      ->type_name("SPEC")
      ->capture_default_str();
  command->add_flag("--validate-routes", flags->options.validate_routes,
                    "Hold each routed layer of each step to every routing "
                    "contract, bit for bit; slow, for finding faults (the "
                    "cheap contracts are always checked)");
}

absl::Status Check(TrunkFlags* flags) {
  TrunkOptions& options = flags->options;
  const auto admission = ServingAdmissionFromText(flags->admission);
  if (!admission.ok()) return Annotate(admission.status(), "--admission");
  options.admission = *admission;
  if (!options.coordinator.empty()) {
    TL_RETURN_IF_ERROR(CheckTransportBetweenProcesses(options.transport));
  }
  return options.Validate();
}

absl::StatusOr<RunningServer> Start(TrunkOptions options,
                                    const ServeHooks& hooks) {
  options.on_load_progress =
      [&hooks](const trunk::TrunkWeights::Progress& progress) {
        hooks.on_loading(progress.bytes_done, progress.bytes_total);
      };
  options.on_refused = hooks.on_refused;
  TL_ASSIGN_OR_RETURN(std::unique_ptr<TrunkServer> started,
                      TrunkServer::Start(options));
  std::string address = started->address();
  return Running(std::move(started), std::move(address),
                 [](TrunkServer* server, absl::Duration patience) {
                   server->Shutdown(patience);
                   return absl::OkStatus();
                 });
}

}  // namespace

void AddTrunkWorkerCommand(CLI::App* program, SelectedCommand* selected) {
  CLI::App* command = program->add_subcommand(
      "trunk-worker", "Serve the generation API; hold what every token needs");
  command->footer(
      "Examples:\n"
      "  trunkline trunk-worker --model DIR --coordinator 10.0.0.1:7070 "
      "--listen 0.0.0.0:7080\n"
      "  trunkline trunk-worker --model DIR        (alone: experts in this "
      "process)");
  auto flags = std::make_shared<TrunkFlags>();
  TrunkOptions* o = &flags->options;
  AddPlaceFlags(command, o);
  AddComputeFlags(command, &o->threads, &o->cores, &o->simd);
  AddNumericsFlag(command, &o->numerics,
                  "Numerics class, the same on all workers; auto: the "
                  "cluster's, or alone the fastest here");
  AddCapacityFlags(command, o);
  AddRoutingFlags(command, flags.get());
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
