#pragma once

// Everything that an operator can say about a coordinator.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/coordinator.h"

namespace trunkline::coordinator {

struct CoordinatorOptions {
  // "host:port"; port 0 picks a free one (CoordinatorServer::address tells).
  std::string listen = "127.0.0.1:7070";
  // SQLite file with identities, placements and their history. Empty: kept in
  // memory, and a restarted coordinator starts a new cluster.
  std::string state_file;
  // The first placement is made when so many expert workers have joined.
  int64_t expert_workers = 1;
  // Copies of every expert in the first placement, on different workers.
  int64_t replicas = 1;
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

  // INVALID_ARGUMENT names the option and its value.
  absl::Status Validate() const;
  CoreOptions Core() const;
};

}  // namespace trunkline::coordinator
