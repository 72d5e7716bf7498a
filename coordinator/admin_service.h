#pragma once

// The operators' service over gRPC. Synchronous, on the server's few pooled
// threads: planning takes long, and the workers' heartbeats must not wait for
// it. Thread-safe.

#include "coordinator/admin_proto.h"
#include "coordinator/coordinator_host.h"
#include "coordinator/coordinator_metrics.h"
#include "proto/placement_admin.grpc.pb.h"

namespace trunkline::coordinator {

class AdminService final : public admin::PlacementAdmin::Service {
 public:
  // Both outlive the service.
  AdminService(CoordinatorHost* host, CoordinatorMetrics* metrics)
      : host_(host), metrics_(metrics) {}

  grpc::Status Show(grpc::ServerContext*, const admin::ShowRequest*,
                    admin::ShowResponse*) override;
  grpc::Status History(grpc::ServerContext*, const admin::HistoryRequest*,
                       admin::HistoryResponse*) override;
  grpc::Status Plan(grpc::ServerContext*, const admin::PlanRequest*,
                    admin::PlanResponse*) override;
  grpc::Status Rebalance(grpc::ServerContext*, const admin::PlanRequest*,
                         admin::PlanResponse*) override;
  grpc::Status Apply(grpc::ServerContext*, const admin::ApplyRequest*,
                     admin::PlanResponse*) override;
  grpc::Status Rollback(grpc::ServerContext*, const admin::RollbackRequest*,
                        admin::ChangeResponse*) override;
  grpc::Status Abandon(grpc::ServerContext*, const admin::AbandonRequest*,
                       admin::ChangeResponse*) override;
  grpc::Status Pin(grpc::ServerContext*, const admin::PinRequest*,
                   admin::PinResponse*) override;
  grpc::Status Export(grpc::ServerContext*, const admin::ExportRequest*,
                      admin::ExportResponse*) override;
  grpc::Status ListWorkers(grpc::ServerContext*,
                           const admin::ListWorkersRequest*,
                           admin::ListWorkersResponse*) override;
  grpc::Status Drain(grpc::ServerContext*, const admin::DrainRequest*,
                     admin::ListWorkersResponse*) override;
  grpc::Status Undrain(grpc::ServerContext*, const admin::DrainRequest*,
                       admin::ListWorkersResponse*) override;
  grpc::Status RecordLoads(grpc::ServerContext*,
                           const admin::RecordLoadsRequest*,
                           admin::RecordLoadsResponse*) override;

 private:
  grpc::Status Answer(const char* method, const absl::Status& status);
  absl::Status PlanFor(const admin::PlanRequest& request,
                       RebalanceSnapshot* snapshot,
                       placement::BalancePlan* plan);
  absl::Status StartChange(const placement::PlacementMap& map,
                           const std::string& origin, PlacementVersion base,
                           uint64_t* version);
  absl::Status SetDrained(const std::string& worker, bool drain,
                          const char* method,
                          admin::ListWorkersResponse* response);

  CoordinatorHost* const host_;
  CoordinatorMetrics* const metrics_;
};

}  // namespace trunkline::coordinator
