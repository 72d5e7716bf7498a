#pragma once

// Everything that an operator can say about a coordinator.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/coordinator.h"
#include "coordinator/store_address.h"

namespace trunkline::coordinator {

struct CoordinatorOptions {
  // "host:port"; port 0 picks a free one (CoordinatorServer::address tells).
  std::string listen = "127.0.0.1:7070";
  // SQLite file with identities, placements and their history. Empty, and no
  // store either: kept in memory, and a restarted coordinator starts a new
  // cluster.
  std::string state_file;
  // Where the same is kept, "sqlite:PATH" or "etcd://host:port,.../prefix"
  // (store_address.h); with etcd several coordinators may run, of which one
  // leads. Not together with state_file.
  std::string store;
  // The host by which workers and tools reach this coordinator when it is not
  // the one listened on. Matters with etcd: followers name the leader's
  // address.
  std::string advertise_host;
  // etcd: a leader that is silent for so long may be replaced. Whole seconds;
  // etcd itself grants no less than it can keep (2 s by default).
  absl::Duration store_lease = absl::Seconds(2);
  // The first placement is made when so many expert workers have joined.
  int64_t expert_workers = 1;
  // Copies of every expert in the first placement, on different workers.
  int64_t replicas = 1;
  // The numerics class of the cluster's workers, which those that were started
  // with "auto" take over. Itself "auto": the class of the first worker.
  std::string numerics = "auto";
  // A worker that is silent for so long is out. Workers send three heartbeats
  // per lease.
  absl::Duration lease = absl::Seconds(2);
  // How long a lost worker may take to come back before its experts are placed
  // elsewhere; the second is for experts of which another copy lives.
  absl::Duration repair_delay = absl::Seconds(5);
  absl::Duration redundancy_delay = absl::Seconds(60);
  // A placement change that its workers have not loaded by then is abandoned.
  absl::Duration stage_timeout = absl::Minutes(10);
  // Experts follow the load: so often a plan of the incremental policy is made,
  // and applied if the slowest worker wins at least rebalance_min_gain of its
  // time by moving at most rebalance_max_moved_bytes (0: not limited). Zero:
  // only when asked.
  absl::Duration rebalance_interval = absl::ZeroDuration();
  double rebalance_min_gain = 0.1;
  uint64_t rebalance_max_moved_bytes = 0;
  // GET /metrics, "host:port"; empty: off.
  std::string metrics;
  // trace | debug | info | warn | error | off; empty: as the process has set
  // it.
  std::string log_level;
  // More followers of the view are refused with RESOURCE_EXHAUSTED.
  int64_t watchers_max = 16384;

  // For tests that put faults between the core and its store.
  std::function<std::unique_ptr<PlacementStore>(
      std::unique_ptr<PlacementStore>)>
      wrap_store;

  // INVALID_ARGUMENT names the option and its value.
  absl::Status Validate() const;
  CoreOptions Core() const;
  // What store and state_file say together. Valid after Validate.
  absl::StatusOr<StoreAddress> Store() const;
};

}  // namespace trunkline::coordinator
