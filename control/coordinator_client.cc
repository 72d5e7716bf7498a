#include "control/coordinator_client.h"

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "control/cluster_proto.h"
#include "control/control_channel.h"
#include "control/status_to_grpc.h"
#include "control/worker_session.h"
#include "proto/control.grpc.pb.h"

namespace trunkline::control {
namespace {

constexpr absl::Duration kRegisterTimeout = absl::Seconds(5);
constexpr absl::Duration kLeaveTimeout = absl::Milliseconds(500);

// Two threads: the keeper registers and sends heartbeats, the watcher reads the
// view. Every call has a deadline or is cancelled by Stop.
class Client final : public CoordinatorClient {
 public:
  Client(const std::string& address, Registration registration,
         Callbacks callbacks)
      : address_(address),
        registration_(std::move(registration)),
        callbacks_(std::move(callbacks)),
        stub_(wire::Coordinator::NewStub(OpenControlChannel(address))) {}

  ~Client() override { Stop(); }

  void StartThreads() {
    keeper_ = std::thread([this] { Keep(); });
    watcher_ = std::thread([this] { Watch(); });
  }

  void ReportNow() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    report_now_ = true;
    changed_.notify_all();
  }

  void Stop() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
      for (grpc::ClientContext* call : calls_) {
        if (call != nullptr) call->TryCancel();
      }
      changed_.notify_all();
    }
    const std::lock_guard<std::mutex> lock(join_mutex_);
    if (keeper_.joinable()) keeper_.join();
    if (watcher_.joinable()) watcher_.join();
  }

 private:
  enum CallSlot { kKeeperCall = 0, kWatcherCall = 1 };

  // Makes a call visible to Stop for as long as it runs.
  class Call {
   public:
    Call(Client* client, CallSlot slot) : client_(client), slot_(slot) {
      const std::lock_guard<std::mutex> lock(client_->mutex_);
      if (client_->ending_ || client_->stopping_) context_.TryCancel();
      client_->calls_[slot_] = &context_;
    }
    ~Call() {
      const std::lock_guard<std::mutex> lock(client_->mutex_);
      client_->calls_[slot_] = nullptr;
    }
    grpc::ClientContext& context() { return context_; }
    void SetTimeout(absl::Duration timeout) {
      context_.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    }

   private:
    Client* client_;
    CallSlot slot_;
    grpc::ClientContext context_;
  };

  bool Stopping() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return stopping_ || ending_;
  }

  // Waits for `wait`, or less when there is something to report (if that
  // matters to the caller) or to stop. False: stop.
  bool Sleep(absl::Duration wait, bool wake_for_report) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, absl::ToChronoNanoseconds(wait), [&] {
      return stopping_ || ending_ || (wake_for_report && report_now_);
    });
    return !stopping_ && !ending_;
  }

  void Keep() {
    while (!Stopping()) {
      const absl::Status status = session_.registered() ? Beat() : Register();
      // A call that Stop cancelled says nothing about the coordinator.
      if (Stopping()) break;
      const WorkerSession::Next next = session_.OnResult(status);
      if (next.refused) {
        Refuse(status);
        return;
      }
      if (status.ok()) {
        LogRecovery();
      } else if (!absl::IsNotFound(status)) {
        LogFailure(status);
      }
      if (!Sleep(next.wait, next.wakes_for_report)) break;
    }
    Leave();
  }

  absl::Status Register() {
    wire::RegisterResponse response;
    {
      Call call(this, kKeeperCall);
      call.SetTimeout(kRegisterTimeout);
      const absl::Status status = FromGrpc(
          stub_->Register(&call.context(), ToProto(registration_), &response));
      if (!status.ok()) return status;
    }
    const Identity identity{.worker = WorkerId(response.worker_id()),
                            .incarnation = response.incarnation(),
                            .epoch = response.epoch(),
                            .cluster_id = response.cluster_id()};
    // Held until on_registered has returned: the watcher wakes as soon as there
    // is an identity, and no view may be delivered before its owner knows who
    // it is.
    const std::lock_guard<std::mutex> one_at_a_time(callback_mutex_);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      identity_ = identity;
      report_now_ = true;  // says at once what is loaded
      changed_.notify_all();
    }
    session_.OnRegistered(identity, absl::Seconds(response.lease_seconds()));
    TL_LOG_INFO("registered at {} as worker {} ({}), incarnation {}", address_,
                identity.worker.value, registration_.name,
                identity.incarnation);
    if (callbacks_.on_registered) callbacks_.on_registered(identity);
    return absl::OkStatus();
  }

  absl::Status Beat() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      report_now_ = false;
    }
    Heartbeat heartbeat;
    {
      const std::lock_guard<std::mutex> one_at_a_time(callback_mutex_);
      const FollowedView followed = followed_;
      heartbeat = session_.MakeHeartbeat(
          followed,
          callbacks_.make_report ? callbacks_.make_report() : Report());
    }
    wire::HeartbeatResponse response;
    Call call(this, kKeeperCall);
    call.SetTimeout(session_.heartbeat_timeout());
    return FromGrpc(
        stub_->Heartbeat(&call.context(), ToProto(heartbeat), &response));
  }

  void Refuse(const absl::Status& status) {
    TL_LOG_ERROR("coordinator {} refused worker {}: {}", address_,
                 registration_.name, std::string(status.message()));
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ending_ = true;
      for (grpc::ClientContext* call : calls_) {
        if (call != nullptr) call->TryCancel();
      }
      changed_.notify_all();
    }
    const std::lock_guard<std::mutex> one_at_a_time(callback_mutex_);
    refused_ = true;
    if (callbacks_.on_refused) callbacks_.on_refused(status);
  }

  // Without an orderly goodbye the lease runs out by itself, so a coordinator
  // that does not answer at once is left alone.
  void Leave() {
    if (!session_.registered() || !reachable_) return;
    const Identity& identity = *session_.identity();
    wire::LeaveRequest request;
    request.set_worker_id(identity.worker.value);
    request.set_incarnation(identity.incarnation);
    request.set_cluster_id(identity.cluster_id);
    wire::LeaveResponse response;
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kLeaveTimeout));
    const absl::Status status =
        FromGrpc(stub_->Leave(&context, request, &response));
    if (!status.ok()) {
      TL_LOG_WARN("leaving the cluster: {}", std::string(status.message()));
    }
  }

  void Watch() {
    RetryBackoff backoff;
    std::optional<Identity> identity;
    while (WaitForIdentity(&identity)) {
      const bool delivered = ReadViews(*identity);
      if (delivered) backoff.Reset();
      if (!SleepUntilReplaced(backoff.Next(), *identity)) return;
    }
  }

  // Waits before the stream is opened again, less when the keeper has
  // registered anew. False: stop.
  bool SleepUntilReplaced(absl::Duration wait, const Identity& identity) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, absl::ToChronoNanoseconds(wait), [&] {
      return stopping_ || ending_ ||
             identity_->incarnation != identity.incarnation ||
             identity_->cluster_id != identity.cluster_id;
    });
    return !stopping_ && !ending_;
  }

  bool WaitForIdentity(std::optional<Identity>* identity) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(
        lock, [&] { return stopping_ || ending_ || identity_.has_value(); });
    *identity = identity_;
    return !stopping_ && !ending_;
  }

  // Follows one stream to its end. True when it delivered a view.
  bool ReadViews(const Identity& identity) {
    wire::WatchRequest request;
    request.set_worker_id(identity.worker.value);
    request.set_incarnation(identity.incarnation);
    request.set_cluster_id(identity.cluster_id);
    Call call(this, kWatcherCall);
    const auto reader = stub_->Watch(&call.context(), request);
    wire::ClusterView message;
    bool delivered = false;
    while (reader->Read(&message)) {
      const absl::StatusOr<ClusterView> view = FromProto(message);
      if (!view.ok()) {
        TL_LOG_ERROR("coordinator {} sent a view that is not valid: {}",
                     address_, std::string(view.status().message()));
        call.context().TryCancel();
        break;
      }
      Deliver(*view);
      delivered = true;
    }
    reader->Finish();  // the keeper logs why the coordinator is away
    return delivered;
  }

  void Deliver(const ClusterView& view) {
    const std::lock_guard<std::mutex> one_at_a_time(callback_mutex_);
    if (refused_) return;
    if (!followed_.IsOlderThan(view)) return;
    if (callbacks_.on_view) callbacks_.on_view(view);
    followed_.Set(view);
  }

  // One line when the coordinator goes away and one when it is back, not one
  // per try.
  void LogFailure(const absl::Status& status) {
    if (reachable_ || !failure_logged_) {
      TL_LOG_WARN("coordinator {} does not answer, trying on: {}", address_,
                  std::string(status.message()));
    }
    failure_logged_ = true;
    reachable_ = false;
  }
  void LogRecovery() {
    if (failure_logged_) TL_LOG_INFO("coordinator {} answers again", address_);
    failure_logged_ = false;
    reachable_ = true;
  }

  const std::string address_;
  const Registration registration_;
  const Callbacks callbacks_;
  const std::unique_ptr<wire::Coordinator::Stub> stub_;
  std::thread keeper_, watcher_;
  std::mutex join_mutex_;

  // Keeper thread only.
  WorkerSession session_;
  bool reachable_ = false, failure_logged_ = false;

  // Guarded by callback_mutex_, which also keeps callbacks one at a time.
  std::mutex callback_mutex_;
  FollowedView followed_;
  bool refused_ = false;

  // Guarded by mutex_.
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;  // Stop was called
  bool ending_ = false;    // the coordinator refused us
  bool report_now_ = false;
  std::optional<Identity> identity_;
  grpc::ClientContext* calls_[2] = {nullptr, nullptr};
};

}  // namespace

std::unique_ptr<CoordinatorClient> CoordinatorClient::Start(
    const std::string& address, Registration registration,
    Callbacks callbacks) {
  auto client = std::make_unique<Client>(address, std::move(registration),
                                         std::move(callbacks));
  client->StartThreads();
  return client;
}

absl::StatusOr<ClusterView> FetchCluster(const std::string& address,
                                         absl::Duration timeout) {
  const auto stub = wire::Coordinator::NewStub(OpenControlChannel(address));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  wire::ClusterView view;
  const absl::Status status =
      FromGrpc(stub->GetCluster(&context, wire::GetClusterRequest(), &view));
  if (!status.ok()) return Annotate(status, "coordinator " + address);
  return FromProto(view);
}

}  // namespace trunkline::control
