#include "cli/worker_flags.h"

#include <memory>

#include "absl/strings/str_join.h"
#include "cli/flags.h"
#include "common/status_macros.h"
#include "kernels/kernel_context.h"
#include "model/checkpoint.h"

namespace trunkline::cli {

void AddComputeFlags(CLI::App* command, int* threads, std::vector<int>* cores,
                     std::string* simd) {
  command
      ->add_option("--threads", *threads,
                   "Threads that compute (default: one per cpu given or "
                   "present)")
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
  AddCpuListFlag(command, "--cores", cores,
                 "Logical cpus to pin the threads to, such as 0-3,8 (default: "
                 "not pinned)");
  command
      ->add_option("--simd", *simd,
                   "auto, or one of this machine's: " +
                       absl::StrJoin(kernels::SupportedTargets(), ", ") +
                       "; all give the same bits")
      ->type_name("TARGET")
      ->capture_default_str();
}

void AddNumericsFlag(CLI::App* command, std::string* numerics,
                     const std::string& help) {
  command->add_option("--numerics", *numerics, help)
      ->type_name("CLASS")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "portable", "bf16dot"}));
}

absl::StatusOr<kernels::Numerics> NumericsForModel(const std::string& asked,
                                                   const std::string& model) {
  if (asked == kernels::NumericsName(kernels::Numerics::kPortable))
    return kernels::Numerics::kPortable;
  TL_ASSIGN_OR_RETURN(const std::shared_ptr<const model::Checkpoint> checkpoint,
                      model::Checkpoint::Open(model));
  auto numerics =
      kernels::ChooseNumerics(asked, checkpoint->projection_dtype());
  if (!numerics.ok()) return Annotate(numerics.status(), "--numerics");
  return numerics;
}

void AddTransportFlags(CLI::App* command, std::string* kind,
                       transport::Options* options) {
  command
      ->add_option("--transport", *kind,
                   "How trunk and expert workers exchange rows")
      ->type_name("KIND")
      ->capture_default_str();
  AddDurationFlag(command, "--peer-timeout", &options->peer_timeout,
                  "Silence after which a peer counts as down");
  AddDurationFlag(command, "--heartbeat-interval", &options->heartbeat_interval,
                  "Between two signs of life");
  AddDurationFlag(command, "--connect-timeout", &options->connect_timeout,
                  "For a connection to come up");
  AddDurationFlag(command, "--spin", &options->spin,
                  "How long to look for a message before sleeping");
  AddBytesFlag(command, "--message-limit", &options->message_bytes_max,
               "A larger message is refused");
  AddBytesFlag(command, "--transport-queue", &options->queue_bytes_max,
               "Bytes that may wait to leave, per connection");
  AddBytesFlag(command, "--transport-pool", &options->pool_bytes_max,
               "Message memory that is kept for reuse");
}

void AddMetricsAndLogFlags(CLI::App* command, std::string* metrics_listen,
                           std::string* log_level) {
  AddAddressFlag(command, "--metrics-listen", metrics_listen, Port::kAny,
                 "Where to serve /metrics; port 0: a free one (default: off)");
  command->add_option("--log-level", *log_level, "How much to log to stderr")
      ->type_name("LEVEL")
      ->capture_default_str()
      ->check(
          CLI::IsMember({"trace", "debug", "info", "warn", "error", "off"}));
}

absl::Status CheckTransportBetweenProcesses(const std::string& kind) {
  if (kind != "inprocess") return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--transport is \"inprocess\": that one joins workers inside one process "
      "only; between processes it is ucx");
}

}  // namespace trunkline::cli
