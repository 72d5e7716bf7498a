#pragma once

// UCX's contexts and workers, and our settings for them. All calls but efd()
// need the owner's mutex: workers are created for serialised use.

#include <ucp/api/ucp.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace trunkline::transport::ucx {

// "Endpoint timeout (-80)".
std::string Describe(ucs_status_t status);

// Which peers a context's workers are for.
//
// A process that is killed while it writes into another's shared-memory queue
// leaves a slot that is taken and never filled, and the owner of the queue
// reads no further: it is deaf to all of its peers on the host. So the worker
// that is shared by many connections has no shared memory, and each connection
// within the host has a worker, and with it a queue, of its own.
enum class Reach { kNetwork, kHost };

class UcxContext {
 public:
  static absl::StatusOr<std::unique_ptr<UcxContext>> Create(Reach reach);
  // Every worker must be gone.
  ~UcxContext();

  ucp_context_h get() const { return context_; }

 private:
  UcxContext() = default;
  ucp_context_h context_ = nullptr;
};

class UcxWorker {
 public:
  // The context must outlive the worker.
  static absl::StatusOr<std::unique_ptr<UcxWorker>> Create(
      const UcxContext& context);
  // Every endpoint and listener must be closed.
  ~UcxWorker();

  ucp_worker_h get() const { return worker_; }
  int efd() const { return efd_; }

  // One round; false when there was nothing to do.
  bool Progress() { return ucp_worker_progress(worker_) != 0; }
  // True when the next event will make efd() readable; false when there is one
  // already.
  bool Arm() { return ucp_worker_arm(worker_) == UCS_OK; }

 private:
  UcxWorker() = default;
  ucp_worker_h worker_ = nullptr;
  int efd_ = -1;
};

// Our defaults. Each yields to its environment variable when the operator has
// set it.
struct Setting {
  const char* variable;  // what the operator would set, without UCX_
  const char* key;       // the name that ucp_config_modify takes in 1.13
  const char* value;
  // Whose setting it is, as UCX_TLS would name them. UCX warns of a setting
  // for a transport that the operator has ruled out.
  std::vector<std::string> transports;
};
const std::vector<Setting>& DefaultSettings();

// Whether a UCX_TLS of this value (null: not set) leaves any of the transports
// in use. An empty list stands for all.
bool AnyInUse(const char* tls, const std::vector<std::string>& transports);
// Whether a UCX_TLS of this value leaves shared memory in use: without it the
// peers of the host are like any others.
bool SharedMemoryInUse(const char* tls);
// The UCX_TLS of a context with that reach, given the operator's (null: not
// set). Of the two kinds of shared memory, a host's context uses sysv: a killed
// process leaves nothing of it behind, and a container's small /dev/shm does
// not limit it. An operator's list that names shared memory only stays as it
// is.
std::string TransportsFor(Reach reach, const char* tls);

}  // namespace trunkline::transport::ucx
