#pragma once

// The trunk worker process: opens the checkpoint, packs the trunk, starts the
// engine, serves the generation API, joins the cluster and follows its view.
// Ties the parts together; decides nothing itself. Called by the program and by
// tests.

#include <grpcpp/server.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/metric_registry.h"
#include "common/thread_pool.h"
#include "control/coordinator_client.h"
#include "model/checkpoint.h"
#include "model/tokenizer.h"
#include "prometheus/registry.h"
#include "trunk_worker/canary.h"
#include "trunk_worker/engine.h"
#include "trunk_worker/expert_link.h"
#include "trunk_worker/generation_service.h"
#include "trunk_worker/generation_wire.h"
#include "trunk_worker/live_route_validator.h"
#include "trunk_worker/route_recorder.h"
#include "trunk_worker/route_recorder_service.h"
#include "trunk_worker/trunk_metrics.h"
#include "trunk_worker/trunk_options.h"
#include "trunk_worker/trunk_weights.h"

namespace trunkline::trunk {

class TrunkServer {
 public:
  // Returns once the weights are packed and the API listens; the health service
  // says SERVING when steps can run. The coordinator may come later. Sets the
  // process's SIMD target and log.
  static absl::StatusOr<std::unique_ptr<TrunkServer>> Start(
      const TrunkOptions& options);
  // Shutdown with no time to wait, unless it has been called.
  ~TrunkServer();
  TrunkServer(const TrunkServer&) = delete;
  TrunkServer& operator=(const TrunkServer&) = delete;

  // New requests are refused with UNAVAILABLE; those that live may finish
  // within `patience`, then they end with UNAVAILABLE. Leaves the cluster.
  // Idempotent; not from a callback.
  void Shutdown(absl::Duration patience);

  const std::string& name() const { return name_; }
  const std::string& address() const { return address_; }  // of the API
  // "host:port", empty when off.
  std::string metrics_address() const {
    return endpoint_ == nullptr ? "" : endpoint_->address();
  }
  Engine& engine() { return *engine_; }

 private:
  TrunkServer() = default;
  absl::Status LoadModel(const TrunkOptions& options);
  absl::Status StartMetrics(const TrunkOptions& options);
  absl::Status StartEngine(const TrunkOptions& options);
  absl::StatusOr<std::unique_ptr<ExpertExchange>> MakeExperts(
      const TrunkOptions& options);
  absl::Status Listen(const TrunkOptions& options);
  void Join(const TrunkOptions& options);
  void OnReadiness(const absl::Status& status);
  void ShowHealth();  // mutex_ is held
  void LookAtCanary(PlacementVersion active);
  void FollowDrain(const control::ClusterView& view);
  void StartCanary(const TrunkOptions& options);
  void OnView(const control::ClusterView& view);

  std::string name_;
  std::string address_;
  bool shut_down_ = false;
  std::atomic<uint64_t> active_version_{PlacementVersion::kNone};

  std::mutex mutex_;  // guards the next four
  bool ready_ = false;
  bool draining_ = false;  // by the view
  bool leaving_ = false;
  grpc::HealthCheckServiceInterface* health_ = nullptr;

  // Destroyed from the last to the first: whoever calls goes before whom it
  // calls.
  std::shared_ptr<prometheus::Registry> registry_;
  std::unique_ptr<MetricsEndpoint> endpoint_;
  std::unique_ptr<TrunkMetrics> metrics_;
  std::unique_ptr<ThreadPool> pool_;
  TrunkWeights weights_;
  ServedModel model_;
  ExpertLink* link_ = nullptr;  // the engine's; null: experts are local
  std::unique_ptr<RouteRecorder> recorder_;
  std::unique_ptr<LiveRouteValidator> validator_;  // null: not asked for
  std::unique_ptr<Canary> canary_;                 // null: no cluster
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<GenerationService> service_;
  std::unique_ptr<RouteRecorderService> record_service_;
  std::unique_ptr<grpc::Server> server_;
  control::Identity identity_;  // the coordinator client's threads only
  std::atomic<control::CoordinatorClient*> reporter_{nullptr};  // client_'s
  std::unique_ptr<control::CoordinatorClient> client_;
};

}  // namespace trunkline::trunk
