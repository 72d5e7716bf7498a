#pragma once

// Everything an expert worker can be told. One flag each in the program.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "expert_worker/expert_runner.h"
#include "expert_worker/expert_worker.h"
#include "kernels/kernel_context.h"
#include "transport/transport.h"

namespace trunkline::expert {

struct ExpertOptions {
  // Hugging Face directory. The same one on every worker of the cluster.
  std::string model_dir;
  // The coordinator's "host:port", or several with commas between of which one
  // leads. None need be up yet.
  std::string coordinator;
  // Unique in the cluster and kept across restarts, so that the worker gets its
  // old id and shards back. Empty: made from host name and data port.
  std::string name;

  // Where trunks connect. Port 0: a free one.
  std::string listen = "127.0.0.1:0";
  // The host that trunks dial when it is not the one listened on (0.0.0.0, or
  // behind an address translation). Empty: the one listened on.
  std::string advertise_host;
  std::string transport = "ucx";  // "ucx" or "inprocess"
  transport::Options transport_options;

  int threads = 0;            // that compute; 0: one per core given or present
  std::vector<int> cores;     // logical cpus to pin them to; empty: not pinned
  bool shared_cores = false;  // with the trunk: see ThreadPool::Options
  std::string simd = "auto";  // or a name of kernels::SupportedTargets()
  // Numerics class: "portable", "bf16dot", or "auto", which is the cluster's.
  std::string numerics = "portable";
  // What answers hold: "auto" (ungated bf16 rows when the model's activations
  // are bf16, else gated f32 rows) or "gated-f32". The text is the same.
  std::string answer = "auto";

  int64_t memory_limit_bytes = 0;  // for experts; 0: not limited
  ExpertWorker::Limits limits;
  // Two copies of an expert are put into two domains where there are two.
  // Empty: the host name.
  std::string failure_domain;
  // On shutdown, how long to wait, within the patience that Shutdown is given,
  // for the coordinator to place this worker's experts elsewhere. Zero: leave
  // at once.
  absl::Duration handover_timeout = absl::InfiniteDuration();

  std::string metrics_listen;  // "host:port" of /metrics; empty: off
  std::string log_level = "info";

  // Called once, from another thread, when the coordinator has refused this
  // worker for good. The process should shut down.
  std::function<void(const absl::Status&)> on_refused;

  // INVALID_ARGUMENT naming the option and its value.
  absl::Status Validate() const;
};

// The answer form that `answer` means for a model's activations. The option has
// been validated.
AnswerForm ChooseAnswerForm(const std::string& answer,
                            kernels::Activation activation);

}  // namespace trunkline::expert
