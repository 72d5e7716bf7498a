#pragma once

// The coordinator process: the core and its store behind gRPC (control plane,
// health, reflection) and /metrics. Called by the program and by tests.

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/coordinator_options.h"

namespace trunkline::coordinator {

class CoordinatorServer {
 public:
  // Returns once the port is open. The gRPC health service answers SERVING for
  // "" as long as the process serves, for the control service while this
  // coordinator leads (always, unless the store is etcd), and for
  // kClusterHealth only while it leads and every expert has a live owner.
  static absl::StatusOr<std::unique_ptr<CoordinatorServer>> Start(
      const CoordinatorOptions& options);
  virtual ~CoordinatorServer() = default;  // Shutdown without patience

  virtual const std::string& address() const = 0;  // "host:port" as bound
  // "host:port" as bound, empty when off.
  virtual const std::string& metrics_address() const = 0;
  // Ends the watches, lets running calls finish for at most `patience`, closes
  // the store. Workers notice and wait for the next coordinator. Idempotent.
  virtual void Shutdown(absl::Duration patience) = 0;

  static constexpr char kClusterHealth[] = "trunkline.cluster";
};

}  // namespace trunkline::coordinator
