#include "coordinator/control_service.h"

#include "absl/strings/str_cat.h"
#include "control/status_to_grpc.h"
#include "coordinator/watch_hub.h"

namespace trunkline::coordinator {
namespace {

namespace wire = control::wire;

grpc::ServerUnaryReactor* Finish(grpc::CallbackServerContext* context,
                                 const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(control::ToGrpc(status));
  return reactor;
}

}  // namespace

ControlService::ControlService(CoordinatorHost* host,
                               CoordinatorMetrics* metrics,
                               int64_t watchers_max)
    : host_(host),
      metrics_(metrics),
      hub_(std::make_unique<WatchHub>(metrics, watchers_max)) {}

ControlService::~ControlService() = default;

void ControlService::Publish(CoordinatorHost::SharedView view) {
  hub_->Publish(std::move(view));
}

void ControlService::EndWatches(const absl::Status& status) {
  hub_->EndAll(status);
}

void ControlService::ReopenWatches() { hub_->Reopen(); }

grpc::ServerUnaryReactor* ControlService::Register(
    grpc::CallbackServerContext* context, const wire::RegisterRequest* request,
    wire::RegisterResponse* response) {
  absl::StatusOr<control::Registration> registration =
      control::FromProto(*request);
  if (!registration.ok()) {
    metrics_->OnRequest("Register", registration.status());
    return Finish(context, registration.status());
  }
  const Reply reply = host_->Submit(
      RegisterEvent{.registration = *std::move(registration)}, "Register");
  if (const auto* body = std::get_if<RegisterReply>(&reply.body);
      body != nullptr && reply.status.ok()) {
    response->set_worker_id(body->identity.worker.value);
    response->set_incarnation(body->identity.incarnation);
    response->set_epoch(body->identity.epoch);
    response->set_cluster_id(body->identity.cluster_id);
    response->set_lease_seconds(absl::ToDoubleSeconds(body->lease));
  }
  return Finish(context, reply.status);
}

grpc::ServerUnaryReactor* ControlService::Heartbeat(
    grpc::CallbackServerContext* context, const wire::HeartbeatRequest* request,
    wire::HeartbeatResponse* response) {
  absl::StatusOr<control::Heartbeat> heartbeat = control::FromProto(*request);
  if (!heartbeat.ok()) {
    metrics_->OnRequest("Heartbeat", heartbeat.status());
    return Finish(context, heartbeat.status());
  }
  const Reply reply = host_->Submit(
      HeartbeatEvent{.heartbeat = *std::move(heartbeat)}, "Heartbeat");
  if (const auto* body = std::get_if<HeartbeatReply>(&reply.body);
      body != nullptr && reply.status.ok()) {
    response->set_epoch(body->epoch);
  }
  return Finish(context, reply.status);
}

grpc::ServerUnaryReactor* ControlService::Leave(
    grpc::CallbackServerContext* context, const wire::LeaveRequest* request,
    wire::LeaveResponse* /*response*/) {
  const Reply reply =
      host_->Submit(LeaveEvent{.worker = WorkerId(request->worker_id()),
                               .incarnation = request->incarnation(),
                               .cluster_id = request->cluster_id()},
                    "Leave");
  return Finish(context, reply.status);
}

grpc::ServerUnaryReactor* ControlService::GetCluster(
    grpc::CallbackServerContext* context,
    const wire::GetClusterRequest* /*request*/, wire::ClusterView* response) {
  absl::StatusOr<wire::ClusterView> view = host_->View();
  metrics_->OnRequest("GetCluster", view.status());
  if (view.ok()) *response = std::move(*view);
  return Finish(context, view.status());
}

grpc::ServerWriteReactor<wire::ClusterView>* ControlService::Watch(
    grpc::CallbackServerContext* /*context*/,
    const wire::WatchRequest* request) {
  const absl::Status status = CheckWatcher(*request);
  metrics_->OnRequest("Watch", status);
  return hub_->Open(status);
}

absl::Status ControlService::CheckWatcher(const wire::WatchRequest& request) {
  const WorkerId worker(request.worker_id());
  if (!worker.valid()) return absl::OkStatus();  // an observer
  absl::Status known;
  const absl::Status asked = host_->Query([&](const Coordinator& core) {
    const Member* member = core.membership().Find(worker);
    if (request.cluster_id() != core.cluster().cluster_id ||
        member == nullptr ||
        member->record.incarnation != request.incarnation()) {
      known = absl::NotFoundError(
          absl::StrCat("incarnation ", request.incarnation(), " of worker ",
                       worker.value, " is not registered"));
    }
  });
  return asked.ok() ? known : asked;
}

}  // namespace trunkline::coordinator
