#pragma once

// All open watch streams. A slow follower misses views, never the newest one,
// and holds no more memory than the view it is being sent. Thread-safe.

#include <grpcpp/support/server_callback.h>

#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/coordinator_host.h"
#include "coordinator/coordinator_metrics.h"
#include "proto/control.pb.h"

namespace trunkline::coordinator {

class WatchHub {
 public:
  using Stream = grpc::ServerWriteReactor<control::wire::ClusterView>;

  WatchHub(CoordinatorMetrics* metrics, int64_t watchers_max)
      : metrics_(metrics), watchers_max_(watchers_max) {}

  // A stream that sends the newest view at once and every newer one, or one
  // that ends with `refusal` when that is not OK. gRPC owns it.
  Stream* Open(const absl::Status& refusal);
  void Publish(CoordinatorHost::SharedView view);
  // Ends every stream, and those that open later, with `status`.
  void EndAll(const absl::Status& status);
  // Streams may open again; they wait for a view that is published from now on.
  void Reopen();

 private:
  class Watcher;

  // Does the one thing that the watcher can do now. Not under the lock: gRPC
  // may call back.
  void Pump(const std::shared_ptr<Watcher>& watcher);
  void Remove(const std::shared_ptr<Watcher>& watcher);
  void PumpAll();

  CoordinatorMetrics* const metrics_;
  const int64_t watchers_max_;

  std::mutex mutex_;
  // Guarded by mutex_.
  CoordinatorHost::SharedView newest_;
  absl::Status ended_;
  std::set<std::shared_ptr<Watcher>> watchers_;
};

}  // namespace trunkline::coordinator
