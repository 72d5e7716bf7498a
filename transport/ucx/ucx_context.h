#pragma once

// The UCX objects of one transport and our settings for them. All calls but
// efd() need the owner's mutex: the worker is created for serialised use.

#include <ucp/api/ucp.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace trunkline::transport::ucx {

// "Endpoint timeout (-80)".
std::string Describe(ucs_status_t status);

class UcxContext {
 public:
  static absl::StatusOr<std::unique_ptr<UcxContext>> Create();
  // Destroys worker and context. Every endpoint and listener must be closed.
  ~UcxContext();

  ucp_worker_h worker() const { return worker_; }
  int efd() const { return efd_; }

  // One round; false when there was nothing to do.
  bool Progress() { return ucp_worker_progress(worker_) != 0; }
  // True when the next event will make efd() readable; false when there is one
  // already.
  bool Arm();

 private:
  UcxContext() = default;
  ucp_context_h context_ = nullptr;
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

}  // namespace trunkline::transport::ucx
