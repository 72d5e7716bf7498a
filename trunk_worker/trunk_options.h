#pragma once

// Everything a trunk worker can be told. One flag each in the program.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "routing/admission.h"
#include "transport/transport.h"
#include "trunk_worker/trunk_weights.h"

namespace trunkline::trunk {

struct TrunkOptions {
  // Hugging Face directory. The same one on every worker of the cluster.
  std::string model_dir;
  // The coordinator's "host:port"; it need not be up yet. Empty: the routed
  // experts run in this process too, and there is no cluster.
  std::string coordinator;
  // Unique in the cluster. Empty: made from the host name and the port listened
  // on, or the process when the port is free to choose.
  std::string name;

  // Where the generation API listens. Port 0: a free one.
  std::string listen = "127.0.0.1:0";
  // The host in the address that the coordinator shows to others when it is not
  // the one listened on. Empty: the one listened on.
  std::string advertise_host;
  std::string transport = "ucx";  // to the experts: "ucx" or "inprocess"
  transport::Options transport_options;

  int threads = 0;            // that compute; 0: one per core given or present
  std::vector<int> cores;     // logical cpus to pin them to; empty: not pinned
  std::string simd = "auto";  // or a name of kernels::SupportedTargets()
  // Numerics class: "portable", "bf16dot", or "auto", which is the cluster's
  // or, without a coordinator, the fastest of this machine for this model.
  std::string numerics = "portable";

  // Sequences that run at one time, and the longest that one may get. Together
  // they bound the state's memory.
  int64_t sequences_max = 64;
  // Prompt and output tokens. 0: what the model was made for, at most 8192.
  int64_t sequence_tokens_max = 0;
  // For keys, values and Mamba states. 0: what all sequences at full length
  // need, at most half of the machine's memory.
  int64_t state_memory_bytes = 0;
  // Requests that wait for memory, when they asked to wait.
  int64_t queue_max = 256;
  // Rows of one step, and of one prompt in one step. More is faster for long
  // prompts and slower for those who wait for their next token meanwhile: a
  // step of 64 rows reads nearly all experts already, and one of 256 takes
  // about twice as long for four times the rows.
  int64_t rows_per_step = 256;
  int64_t prefill_chunk = 256;

  // The longest a request may take, whatever its own deadline says.
  absl::Duration request_time_max = absl::InfiniteDuration();
  // How long running requests are held while experts are out of reach. Longer
  // than the coordinator takes to place lost experts elsewhere (its lease and
  // repair delay, and the loading).
  absl::Duration unready_patience = absl::Seconds(30);
  // From rows sent to one expert worker to its answer; then the worker counts
  // as down.
  absl::Duration worker_deadline = absl::Seconds(10);
  // For one moe layer, with all retries.
  absl::Duration exchange_deadline = absl::Seconds(60);
  // Prompt tokens of the canary that is generated after each activation of a
  // placement version, and whose bits the coordinator compares. 0: none, and an
  // expert that is not the checkpoint's after a change is noticed by nobody.
  int64_t canary_tokens = 128;
  // Output of one stream that its client has not read yet; beyond it the stream
  // ends with RESOURCE_EXHAUSTED.
  int64_t stream_buffer_bytes = int64_t{1} << 20;

  // What becomes of a route whose expert is full. Dropless: there is no such
  // thing. A fixed capacity drops routes, so it is another model than the
  // checkpoint's own: opt-in, and the same on every trunk of the cluster.
  routing::AdmissionPolicy admission;
  // Hold each routed layer of each step to every contract, not only to those
  // that are cheap. For finding faults: it multiplies the time of a step.
  bool validate_routes = false;

  std::string metrics_listen;  // "host:port" of /metrics; empty: off
  std::string log_level = "info";

  // Called while weights load, on the thread that called Start.
  std::function<void(const TrunkWeights::Progress&)> on_load_progress;
  // Called once, from another thread, when the coordinator has refused this
  // worker for good. The process should shut down.
  std::function<void(const absl::Status&)> on_refused;

  // INVALID_ARGUMENT naming the flag and its value.
  absl::Status Validate() const;
};

}  // namespace trunkline::trunk
