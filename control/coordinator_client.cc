#include "control/coordinator_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "control/ask_leader.h"
#include "control/cluster_proto.h"
#include "control/control_channel.h"
#include "control/coordinator_addresses.h"
#include "control/status_to_grpc.h"
#include "control/worker_session.h"
#include "proto/control.grpc.pb.h"

namespace trunkline::control {
namespace {

// Before the next coordinator of the list is asked.
constexpr absl::Duration kNextCoordinator = absl::Milliseconds(20);
constexpr absl::Duration kRegisterTimeout = absl::Seconds(5);
constexpr absl::Duration kLeaveTimeout = absl::Milliseconds(500);

uint64_t DrawProcess() {
  std::random_device device;
  const uint64_t process = (uint64_t{device()} << 32) | device();
  return process == 0 ? 1 : process;  // 0 reads as "not said"
}

// Two threads: the keeper registers and sends heartbeats, the watcher reads the
// view. Every call has a deadline or is cancelled by Stop. The keeper finds out
// which coordinator leads; the watcher goes where the keeper went.
class Client final : public CoordinatorClient {
 public:
  Client(std::vector<std::string> addresses, Registration registration,
         Callbacks callbacks)
      : registration_(std::move(registration)),
        callbacks_(std::move(callbacks)),
        addresses_(std::move(addresses)) {
    Dial();
  }

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
      absl::Duration wait = next.wait;
      if (status.ok()) {
        addresses_.OnSuccess();
        LogRecovery();
      } else if (!absl::IsNotFound(status)) {
        LogFailure(status);
        if (TryAnother(status)) wait = std::min(wait, kNextCoordinator);
      }
      if (!Sleep(wait, next.wakes_for_report)) break;
    }
    Leave();
  }

  // After a failed call. True: another coordinator is next, and it has not been
  // asked in this round, in which each is asked once before anybody waits for
  // long.
  bool TryAnother(const absl::Status& status) {
    const bool another = addresses_.OnFailure(status);
    if (another || IsDown(links_[addresses_.current()])) Dial();
    return another && addresses_.failures() % (addresses_.size() + 1) != 0;
  }

  struct Link {
    std::shared_ptr<grpc::Channel> channel;
    std::shared_ptr<wire::Coordinator::Stub> stub;
  };
  // Calls on such a channel fail at once and drive no dial; a new one dials
  // with its first call (docs/gotchas.md).
  static bool IsDown(const Link& link) {
    return link.channel != nullptr &&
           link.channel->GetState(/*try_to_connect=*/false) ==
               GRPC_CHANNEL_TRANSIENT_FAILURE;
  }

  // Calls go to the current address from now on; a view that is being followed
  // elsewhere ends. Keeper thread, or before there is one.
  void Dial() {
    Link& link = links_[addresses_.current()];
    if (link.channel == nullptr || IsDown(link)) {
      link.channel = OpenControlChannel(addresses_.current());
      link.stub = wire::Coordinator::NewStub(link.channel);
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    stub_ = link.stub;
    address_ = addresses_.current();
    ++dials_;
    if (calls_[kWatcherCall] != nullptr) calls_[kWatcherCall]->TryCancel();
    changed_.notify_all();
  }

  std::shared_ptr<wire::Coordinator::Stub> Stub() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return stub_;
  }
  std::string Address() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return address_;
  }

  absl::Status Register() {
    wire::RegisterResponse response;
    {
      Call call(this, kKeeperCall);
      call.SetTimeout(kRegisterTimeout);
      const absl::Status status = FromGrpc(Stub()->Register(
          &call.context(), ToProto(session_.MakeRegistration(registration_)),
          &response));
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
    TL_LOG_INFO("registered at {} as worker {} ({}), incarnation {}", Address(),
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
        Stub()->Heartbeat(&call.context(), ToProto(heartbeat), &response));
  }

  void Refuse(const absl::Status& status) {
    TL_LOG_ERROR("coordinator {} refused worker {}: {}", Address(),
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
        FromGrpc(Stub()->Leave(&context, request, &response));
    if (!status.ok()) {
      TL_LOG_WARN("leaving the cluster: {}", std::string(status.message()));
    }
  }

  void Watch() {
    RetryBackoff backoff;
    Target target;
    while (WaitForIdentity(&target)) {
      const bool delivered = ReadViews(target);
      if (delivered) backoff.Reset();
      if (!SleepUntilReplaced(backoff.Next(), target)) return;
    }
  }

  // What a stream is opened for; another one makes it obsolete.
  struct Target {
    Identity identity;
    std::shared_ptr<wire::Coordinator::Stub> stub;
    uint64_t dials = 0;
  };

  // Waits before the stream is opened again, less when the keeper has
  // registered anew or has gone to another coordinator. False: stop.
  bool SleepUntilReplaced(absl::Duration wait, const Target& target) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, absl::ToChronoNanoseconds(wait), [&] {
      return stopping_ || ending_ || dials_ != target.dials ||
             identity_->incarnation != target.identity.incarnation ||
             identity_->epoch != target.identity.epoch ||
             identity_->cluster_id != target.identity.cluster_id;
    });
    return !stopping_ && !ending_;
  }

  bool WaitForIdentity(Target* target) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(
        lock, [&] { return stopping_ || ending_ || identity_.has_value(); });
    if (stopping_ || ending_) return false;
    *target = {.identity = *identity_, .stub = stub_, .dials = dials_};
    return true;
  }

  // Follows one stream to its end. True when it delivered a view.
  bool ReadViews(const Target& target) {
    const Identity& identity = target.identity;
    wire::WatchRequest request;
    request.set_worker_id(identity.worker.value);
    request.set_incarnation(identity.incarnation);
    request.set_cluster_id(identity.cluster_id);
    Call call(this, kWatcherCall);
    const auto reader = target.stub->Watch(&call.context(), request);
    wire::ClusterView message;
    bool delivered = false;
    while (reader->Read(&message)) {
      const absl::StatusOr<ClusterView> view = FromProto(message);
      if (!view.ok()) {
        TL_LOG_ERROR("coordinator {} sent a view that is not valid: {}",
                     Address(), std::string(view.status().message()));
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
      TL_LOG_WARN("coordinator {} does not answer, trying on: {}", Address(),
                  std::string(status.message()));
    }
    failure_logged_ = true;
    reachable_ = false;
  }
  void LogRecovery() {
    if (failure_logged_) TL_LOG_INFO("coordinator {} answers", Address());
    failure_logged_ = false;
    reachable_ = true;
  }

  const Registration registration_;
  const Callbacks callbacks_;
  std::thread keeper_, watcher_;
  std::mutex join_mutex_;

  // Keeper thread only.
  CoordinatorAddresses addresses_;
  std::map<std::string, Link> links_;  // by address
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
  std::string address_;
  std::shared_ptr<wire::Coordinator::Stub> stub_;  // of address_
  uint64_t dials_ = 0;
  std::optional<Identity> identity_;
  grpc::ClientContext* calls_[2] = {nullptr, nullptr};
};

}  // namespace

std::unique_ptr<CoordinatorClient> CoordinatorClient::Start(
    const std::string& addresses, Registration registration,
    Callbacks callbacks) {
  absl::StatusOr<std::vector<std::string>> listed =
      ParseCoordinatorAddresses(addresses);
  // A text that is no list is dialled as it is, and the failure logged.
  if (!listed.ok()) listed = std::vector<std::string>{addresses};
  if (registration.process == 0) registration.process = DrawProcess();
  auto client = std::make_unique<Client>(
      *std::move(listed), std::move(registration), std::move(callbacks));
  client->StartThreads();
  return client;
}

absl::StatusOr<ClusterView> FetchCluster(const std::string& addresses,
                                         absl::Duration timeout) {
  wire::ClusterView view;
  TL_RETURN_IF_ERROR(
      AskLeader(addresses, timeout, Asking::kLook,
                [&](const std::shared_ptr<grpc::Channel>& channel,
                    grpc::ClientContext* context) {
                  return wire::Coordinator::NewStub(channel)->GetCluster(
                      context, wire::GetClusterRequest(), &view);
                }));
  return FromProto(view);
}

}  // namespace trunkline::control
