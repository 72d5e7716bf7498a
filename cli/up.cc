// trunkline up: a whole cluster on this machine from one command. Children are
// processes of this same program; none survives it, however it ends.

#include <memory>
#include <string>

#include "cli/command.h"
#include "cli/contract_spec.h"
#include "cli/flags.h"
#include "cli/supervisor.h"
#include "cli/up_plan.h"
#include "cli/worker_flags.h"
#include "common/status_macros.h"

namespace trunkline::cli {
namespace {

void AddClusterFlags(CLI::App* command, UpFlags* f) {
  command->add_option("--model", f->model, "Hugging Face checkpoint directory")
      ->type_name("DIR")
      ->required();
  const auto add_count = [command](const char* name, int* value, int most,
                                   const char* help) {
    return command->add_option(name, *value, help)
        ->type_name("N")
        ->check(CLI::Range(1, most));
  };
  add_count("--experts", &f->experts, 1024, "Expert workers")
      ->capture_default_str();
  add_count("--trunks", &f->trunks, 64, "Trunk workers")->capture_default_str();
  add_count("--replicas", &f->replicas, 1024,
            "Copies of every expert, each on another worker")
      ->capture_default_str();
  add_count("--threads", &f->threads, 1024,
            "Compute threads of each worker (default: the machine's cpus "
            "shared out)");
  command->add_option("--admission", f->admission, kServingAdmissionHelp)
      ->type_name("SPEC")
      ->capture_default_str();
  command->add_flag("--validate-routes", f->validate_routes,
                    "Trunk workers hold each routed layer to every routing "
                    "contract; slow, for finding faults");
  AddCpuListFlag(command, "--cores", &f->cores,
                 "Logical cpus to pin compute threads to, such as 0-7: shared "
                 "out among the expert workers, and once more among the trunk "
                 "workers, who take turns with them (default: not pinned)");
  command->add_option("--simd", f->simd, "SIMD target of every worker")
      ->type_name("TARGET")
      ->capture_default_str();
  AddNumericsFlag(command, &f->numerics,
                  "Numerics class of every worker; auto: the fastest of this "
                  "machine for this model");
  command
      ->add_option("--transport", f->transport,
                   "Between the workers; processes need ucx")
      ->type_name("KIND")
      ->capture_default_str()
      ->check(CLI::IsMember({"ucx"}));
}

void AddRunFlags(CLI::App* command, UpFlags* f) {
  AddAddressFlag(command, "--listen", &f->listen, Port::kAny,
                 "The first trunk worker's API; port 0: a free one");
  AddAddressFlag(command, "--coordinator-listen", &f->coordinator_listen,
                 Port::kAny, "The coordinator; port 0: a free one");
  command
      ->add_option("--state-file", f->state_file,
                   "The coordinator's SQLite file (default: memory only)")
      ->type_name("FILE");
  command
      ->add_option("--store", f->store,
                   "The coordinators' store: sqlite:FILE or "
                   "etcd://HOST:PORT,.../PREFIX")
      ->type_name("STORE");
  command
      ->add_option("--coordinators", f->coordinators,
                   "Coordinators that share a store in etcd; one leads")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(1, 9));
  command->add_flag("--no-metrics", f->no_metrics,
                    "Do not serve /metrics (else each process does, on a free "
                    "port)");
  command
      ->add_option("--log-dir", f->log_dir,
                   "NAME.log and NAME.address of every process go here "
                   "(default: log lines to stderr with the name in front)")
      ->type_name("DIR");
  command->add_option("--log-level", f->log_level, "Of every process")
      ->type_name("LEVEL")
      ->capture_default_str()
      ->check(
          CLI::IsMember({"trace", "debug", "info", "warn", "error", "off"}));
  command
      ->add_option("--address-file", f->address_file,
                   "Written once the cluster serves: API addresses, one per "
                   "line")
      ->type_name("FILE");
  AddDurationFlag(command, "--wait-ready", &f->wait_ready,
                  "Stop with exit code 1 when the cluster does not serve after "
                  "this long");
  AddDurationFlag(command, "--drain-timeout", &f->drain_timeout,
                  "How long running requests may take to finish on a stop");
  command->add_flag("--keep-going", f->keep_going,
                    "Report a process that ends, but let the others run");
}

}  // namespace

void AddUpCommand(CLI::App* program, SelectedCommand* selected) {
  CLI::App* command = program->add_subcommand(
      "up", "Run a whole cluster on this machine until ctrl-C");
  command->footer(
      "Starts a coordinator, expert workers and trunk workers as processes of "
      "this program.\n"
      "ctrl-C stops trunks, experts and coordinator in that order; a second "
      "one ends all at once.\n"
      "Examples:\n"
      "  trunkline up --model models/demo --experts 2\n"
      "  trunkline up --model models/demo --experts 3 --replicas 2 "
      "--listen 127.0.0.1:7080 --log-dir logs\n"
      "Exit codes: 0 stopped as asked, 1 a process died or the cluster was not "
      "ready in time,\n2 wrong usage, 130 ended by a second signal.");
  auto flags = std::make_shared<UpFlags>();
  AddClusterFlags(command, flags.get());
  AddRunFlags(command, flags.get());
  command->callback([selected, flags] {
    *selected = [flags]() -> int {
      const absl::Status valid = CheckUpFlags(*flags);
      if (!valid.ok()) return ReportUsage("up", std::string(valid.message()));
      // All workers are on this machine: what auto means is known here.
      const auto numerics = NumericsForModel(flags->numerics, flags->model);
      if (!numerics.ok()) return ReportFailure("up", numerics.status());
      flags->numerics = kernels::NumericsName(*numerics);
      return Supervisor(*flags).Run();
    };
  });
}

}  // namespace trunkline::cli
