#pragma once

// The workers' service over gRPC: checks messages, turns them into events and
// back. Watch streams cost no thread: each is a reactor that sends the newest
// view whenever its last write is done. Thread-safe.

#include <memory>

#include "control/cluster_proto.h"
#include "coordinator/coordinator_host.h"
#include "coordinator/coordinator_metrics.h"
#include "proto/control.grpc.pb.h"

namespace trunkline::coordinator {

class WatchHub;

class ControlService final
    : public control::wire::Coordinator::CallbackService {
 public:
  // host and metrics outlive the service, and the service every call.
  ControlService(CoordinatorHost* host, CoordinatorMetrics* metrics,
                 int64_t watchers_max);
  ~ControlService() override;

  // The newest view, for everybody who watches.
  void Publish(CoordinatorHost::SharedView view);
  // Ends all watches with this status and refuses new ones, until Reopen.
  void EndWatches(const absl::Status& status);
  void ReopenWatches();

  grpc::ServerUnaryReactor* Register(
      grpc::CallbackServerContext* context,
      const control::wire::RegisterRequest* request,
      control::wire::RegisterResponse* response) override;
  grpc::ServerUnaryReactor* Heartbeat(
      grpc::CallbackServerContext* context,
      const control::wire::HeartbeatRequest* request,
      control::wire::HeartbeatResponse* response) override;
  grpc::ServerUnaryReactor* Leave(
      grpc::CallbackServerContext* context,
      const control::wire::LeaveRequest* request,
      control::wire::LeaveResponse* response) override;
  grpc::ServerUnaryReactor* GetCluster(
      grpc::CallbackServerContext* context,
      const control::wire::GetClusterRequest* request,
      control::wire::ClusterView* response) override;
  grpc::ServerWriteReactor<control::wire::ClusterView>* Watch(
      grpc::CallbackServerContext* context,
      const control::wire::WatchRequest* request) override;

 private:
  absl::Status CheckWatcher(const control::wire::WatchRequest& request);

  CoordinatorHost* const host_;
  CoordinatorMetrics* const metrics_;
  const std::unique_ptr<WatchHub> hub_;
};

}  // namespace trunkline::coordinator
