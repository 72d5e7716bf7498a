#include "coordinator/admin_service.h"

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "control/status_to_grpc.h"
#include "placement/placement_json.h"

namespace trunkline::coordinator {
namespace {

PlacementVersion FromWire(uint64_t version) {
  return version == 0 ? PlacementVersion() : PlacementVersion(version);
}

absl::Time Now() { return Clock::Monotonic().Now(); }

uint64_t StartedVersion(const Reply& reply) {
  const auto* change = std::get_if<ChangeReply>(&reply.body);
  return change != nullptr && reply.status.ok() ? change->version.value : 0;
}

}  // namespace

grpc::Status AdminService::Answer(const char* method,
                                  const absl::Status& status) {
  metrics_->OnRequest(method, status);
  return control::ToGrpc(status);
}

grpc::Status AdminService::Show(grpc::ServerContext*, const admin::ShowRequest*,
                                admin::ShowResponse* response) {
  return Answer("Show", host_->Query([&](const Coordinator& core) {
    *response = DescribePlacements(core, Now());
  }));
}

grpc::Status AdminService::History(grpc::ServerContext*,
                                   const admin::HistoryRequest* request,
                                   admin::HistoryResponse* response) {
  return Answer("History", host_->Query([&](const Coordinator& core) {
    *response = DescribeHistory(core, request->limit());
  }));
}

absl::Status AdminService::PlanFor(const admin::PlanRequest& request,
                                   RebalanceSnapshot* snapshot,
                                   placement::BalancePlan* plan) {
  TL_ASSIGN_OR_RETURN(const RebalanceOptions options, OptionsFrom(request));
  TL_ASSIGN_OR_RETURN(*snapshot, host_->Snapshot());
  TL_ASSIGN_OR_RETURN(*plan, PlanRebalance(*snapshot, options));
  return absl::OkStatus();
}

grpc::Status AdminService::Plan(grpc::ServerContext*,
                                const admin::PlanRequest* request,
                                admin::PlanResponse* response) {
  RebalanceSnapshot snapshot;
  placement::BalancePlan plan;
  const absl::Status status = PlanFor(*request, &snapshot, &plan);
  if (status.ok()) *response = DescribePlan(snapshot, plan);
  return Answer("Plan", status);
}

absl::Status AdminService::StartChange(const placement::PlacementMap& map,
                                       const std::string& origin,
                                       PlacementVersion base,
                                       uint64_t* version) {
  const Reply reply = host_->Submit(
      ApplyEvent{.map = map, .origin = origin, .expected_active = base},
      "StartChange");
  *version = StartedVersion(reply);
  return reply.status;
}

grpc::Status AdminService::Rebalance(grpc::ServerContext*,
                                     const admin::PlanRequest* request,
                                     admin::PlanResponse* response) {
  bool pinned = false;
  std::string why;
  absl::Status status = host_->Query([&](const Coordinator& core) {
    pinned = core.cluster().pinned;
    why = core.cluster().pin_reason;
  });
  if (status.ok() && pinned && !request->dry_run()) {
    status = absl::FailedPreconditionError(
        absl::StrCat("the placement is pinned: ", why));
  }
  RebalanceSnapshot snapshot;
  placement::BalancePlan plan;
  if (status.ok()) status = PlanFor(*request, &snapshot, &plan);
  if (status.ok()) *response = DescribePlan(snapshot, plan);
  if (status.ok() && plan.worthwhile && !request->dry_run()) {
    uint64_t version = 0;
    status =
        StartChange(plan.map, "rebalance", snapshot.current.version, &version);
    response->set_version(version);
  }
  return Answer("Rebalance", status);
}

grpc::Status AdminService::Apply(grpc::ServerContext*,
                                 const admin::ApplyRequest* request,
                                 admin::PlanResponse* response) {
  const auto apply = [&]() -> absl::Status {
    TL_ASSIGN_OR_RETURN(const placement::PlacementDocument document,
                        placement::PlacementFromJson(request->document()));
    TL_ASSIGN_OR_RETURN(const RebalanceSnapshot snapshot, host_->Snapshot());
    std::map<std::string, WorkerId> ids;
    for (const auto& [id, name] : snapshot.names) ids[name] = id;
    TL_ASSIGN_OR_RETURN(const placement::PlacementMap map,
                        placement::ResolveWorkers(document, ids));
    const PlacementVersion base = FromWire(request->base_version());
    if (base.valid() && base != snapshot.current.version) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the change was made against placement version ", base.value,
          ", active is ", snapshot.current.version.value));
    }
    TL_ASSIGN_OR_RETURN(const placement::BalancePlan plan,
                        PlanGivenMap(snapshot, map));
    *response = DescribePlan(snapshot, plan);
    if (request->dry_run()) return absl::OkStatus();
    uint64_t version = 0;
    TL_RETURN_IF_ERROR(
        StartChange(map, "apply", snapshot.current.version, &version));
    response->set_version(version);
    return absl::OkStatus();
  };
  return Answer("Apply", apply());
}

grpc::Status AdminService::Rollback(grpc::ServerContext*,
                                    const admin::RollbackRequest* request,
                                    admin::ChangeResponse* response) {
  const Reply reply = host_->Submit(
      RollbackEvent{.version = FromWire(request->version())}, "Rollback");
  response->set_version(StartedVersion(reply));
  return control::ToGrpc(reply.status);
}

grpc::Status AdminService::Abandon(grpc::ServerContext*,
                                   const admin::AbandonRequest* request,
                                   admin::ChangeResponse* response) {
  const std::string reason =
      request->reason().empty() ? "an operator gave it up" : request->reason();
  const Reply reply = host_->Submit(
      AbandonEvent{.version = FromWire(request->version()), .reason = reason},
      "Abandon");
  response->set_version(request->version());
  return control::ToGrpc(reply.status);
}

grpc::Status AdminService::Pin(grpc::ServerContext*,
                               const admin::PinRequest* request,
                               admin::PinResponse* response) {
  const Reply reply = host_->Submit(
      PinEvent{.pinned = request->pinned(),
               .reason = request->reason().empty() ? "by an operator"
                                                   : request->reason()},
      "Pin");
  if (!reply.status.ok()) return control::ToGrpc(reply.status);
  return control::ToGrpc(host_->Query([&](const Coordinator& core) {
    const PlacementRecord* active = core.driver().Active();
    if (active != nullptr) {
      response->set_active_version(active->map.version.value);
    }
  }));
}

grpc::Status AdminService::Export(grpc::ServerContext*,
                                  const admin::ExportRequest* request,
                                  admin::ExportResponse* response) {
  absl::StatusOr<std::string> document = absl::UnknownError("");
  const absl::Status status = host_->Query([&](const Coordinator& core) {
    document = ExportDocument(core, FromWire(request->version()));
  });
  if (!status.ok()) return Answer("Export", status);
  if (document.ok()) response->set_document(std::move(*document));
  return Answer("Export", document.status());
}

grpc::Status AdminService::ListWorkers(grpc::ServerContext*,
                                       const admin::ListWorkersRequest*,
                                       admin::ListWorkersResponse* response) {
  return Answer("ListWorkers", host_->Query([&](const Coordinator& core) {
    *response = DescribeWorkers(core, Now());
  }));
}

absl::Status AdminService::SetDrained(const std::string& worker, bool drain,
                                      const char* method,
                                      admin::ListWorkersResponse* response) {
  const Reply reply =
      host_->Submit(DrainEvent{.worker = worker, .drain = drain}, method);
  TL_RETURN_IF_ERROR(reply.status);
  return host_->Query([&](const Coordinator& core) {
    *response = DescribeWorkers(core, Now());
  });
}

grpc::Status AdminService::Drain(grpc::ServerContext*,
                                 const admin::DrainRequest* request,
                                 admin::ListWorkersResponse* response) {
  return control::ToGrpc(
      SetDrained(request->worker(), true, "Drain", response));
}

grpc::Status AdminService::Undrain(grpc::ServerContext*,
                                   const admin::DrainRequest* request,
                                   admin::ListWorkersResponse* response) {
  return control::ToGrpc(
      SetDrained(request->worker(), false, "Undrain", response));
}

grpc::Status AdminService::RecordLoads(grpc::ServerContext*,
                                       const admin::RecordLoadsRequest* request,
                                       admin::RecordLoadsResponse* response) {
  using Request = admin::RecordLoadsRequest;
  if (request->action() != Request::START &&
      request->action() != Request::STOP &&
      request->action() != Request::DUMP) {
    return Answer("RecordLoads",
                  absl::InvalidArgumentError("action: is not START, STOP or "
                                             "DUMP"));
  }
  if (request->action() != Request::DUMP) {
    const Reply reply =
        host_->Submit(RecordEvent{.start = request->action() == Request::START},
                      "RecordLoads");
    if (!reply.status.ok()) return control::ToGrpc(reply.status);
  }
  return Answer("RecordLoads", host_->Query([&](const Coordinator& core) {
    DescribeRecording(core.loads().Recorded(Now()),
                      request->action() != Request::START, response);
  }));
}

}  // namespace trunkline::coordinator
