#pragma once

// The expert worker process: opens the checkpoint, listens, joins the cluster,
// loads what placement versions place here and answers trunks. Ties together
// expert_store, placement_follower, expert_engine and the coordinator's client;
// decides nothing itself. Called by the program and by tests.

#include <atomic>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/metric_registry.h"
#include "control/coordinator_client.h"
#include "expert_worker/expert_engine.h"
#include "expert_worker/expert_metrics.h"
#include "expert_worker/expert_options.h"
#include "expert_worker/expert_store.h"
#include "expert_worker/peer_directory.h"
#include "expert_worker/placement_follower.h"
#include "prometheus/registry.h"

namespace trunkline::expert {

class ExpertServer {
 public:
  // Returns once the worker listens and has begun to register. The coordinator
  // may come later. Sets the process's SIMD target and log.
  static absl::StatusOr<std::unique_ptr<ExpertServer>> Start(
      const ExpertOptions& options);
  // Shutdown with no time to wait, unless it has been called.
  ~ExpertServer();
  ExpertServer(const ExpertServer&) = delete;
  ExpertServer& operator=(const ExpertServer&) = delete;

  // Serves until its experts are placed elsewhere (unless the options or a
  // patience of zero forbid the wait, or nobody is left to take them), leaves
  // the cluster, finishes the frames it has and refuses new ones.
  // DEADLINE_EXCEEDED when some were left unanswered. Idempotent; not from a
  // callback.
  absl::Status Shutdown(absl::Duration patience);

  const std::string& name() const { return name_; }
  const std::string& data_address() const { return data_address_; }
  // "host:port", empty when off.
  const std::string& metrics_address() const { return metrics_address_; }

 private:
  ExpertServer() = default;
  absl::Status StartMetrics(const ExpertOptions& options);
  void Join(const ExpertOptions& options, control::Registration registration);
  control::Report MakeReport();
  void ReportNow();

  std::string name_;
  std::string data_address_;
  std::string metrics_address_;
  absl::Duration handover_timeout_;
  std::atomic<bool> wants_drain_{false};
  bool shut_down_ = false;

  // Destroyed from the last to the first: the client's object outlives the
  // threads that call ReportNow, the registry outlives those that count.
  std::shared_ptr<prometheus::Registry> registry_;
  std::unique_ptr<MetricsEndpoint> endpoint_;
  std::unique_ptr<ExpertMetrics> metrics_;
  PeerDirectory peers_;
  WorkerId worker_;  // of the client's callbacks alone
  std::unique_ptr<control::CoordinatorClient> client_;
  std::atomic<control::CoordinatorClient*> reporter_{nullptr};
  std::unique_ptr<PlacementFollower> follower_;
  std::unique_ptr<ExpertEngine> engine_;
  std::unique_ptr<ExpertStore> store_;
};

}  // namespace trunkline::expert
