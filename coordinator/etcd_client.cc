#include "coordinator/etcd_client.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "control/status_to_grpc.h"

namespace trunkline::coordinator {
namespace {

namespace pb = etcdserverpb;

// etcd counts pings more often than every 5 s as abuse and hangs up.
constexpr int kPingPeriodMs = 6000;
constexpr int kPingTimeoutMs = 2000;
constexpr int kReconnectFirstMs = 100, kReconnectMostMs = 300;
// gRPC's least time between two dials is also how long a dial may take.
constexpr int kDialMs = 1000;
constexpr int kMessageBytesMax = 256 << 20;  // the whole prefix in one answer

// A deadline is passed on in whole milliseconds, and the member's timer may be
// the earlier one.
constexpr absl::Duration kDeadlineSlack = absl::Milliseconds(5);

std::shared_ptr<grpc::Channel> OpenChannel(const std::string& endpoint) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kPingPeriodMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingTimeoutMs);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kReconnectFirstMs);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kDialMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kReconnectMostMs);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(kMessageBytesMax);
  return grpc::CreateCustomChannel(endpoint, grpc::InsecureChannelCredentials(),
                                   arguments);
}

absl::Time Now() { return Clock::Monotonic().Now(); }

}  // namespace

struct EtcdClient::Endpoint {
  explicit Endpoint(std::string its_address)
      : address(std::move(its_address)),
        channel(OpenChannel(address)),
        kv(pb::KV::NewStub(channel)),
        lease(pb::Lease::NewStub(channel)),
        watch(pb::Watch::NewStub(channel)) {}

  const std::string address;
  const std::shared_ptr<grpc::Channel> channel;
  const std::unique_ptr<pb::KV::Stub> kv;
  const std::unique_ptr<pb::Lease::Stub> lease;
  const std::unique_ptr<pb::Watch::Stub> watch;
};

// One call's context, known to Cancel for as long as it runs.
class EtcdClient::Call {
 public:
  Call(EtcdClient* client, absl::Duration timeout) : client_(client) {
    context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    // A call that fails at once while the channel dials drives no dial: a
    // member that comes back would stay away as long as only such calls are
    // made (docs/gotchas.md). This one waits, within its share of the time.
    context.set_wait_for_ready(true);
    // A member that has lost its quorum answers so instead of not at all.
    context.AddMetadata("hasleader", "true");
    const std::lock_guard<std::mutex> lock(client_->mutex_);
    client_->calls_.insert(&context);
  }
  ~Call() {
    const std::lock_guard<std::mutex> lock(client_->mutex_);
    client_->calls_.erase(&context);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  grpc::ClientContext context;

 private:
  EtcdClient* const client_;
};

EtcdClient::EtcdClient(std::vector<std::string> endpoints,
                       absl::Duration call_timeout)
    : call_timeout_(call_timeout) {
  for (std::string& endpoint : endpoints) {
    endpoints_.push_back(std::make_unique<Endpoint>(std::move(endpoint)));
  }
}

EtcdClient::~EtcdClient() = default;

void EtcdClient::Cancel() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (grpc::ClientContext* call : calls_) call->TryCancel();
}

EtcdClient::Endpoint& EtcdClient::Current() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return *endpoints_[current_];
}

void EtcdClient::Leave(const Endpoint& endpoint) {
  const std::lock_guard<std::mutex> lock(mutex_);
  // Another call may have left it already.
  if (endpoints_[current_].get() != &endpoint) return;
  current_ = (current_ + 1) % endpoints_.size();
}

// Runs `call` on the current endpoint, and on the others while they say
// UNAVAILABLE or let their share of the time pass.
absl::Status EtcdClient::Try(
    absl::FunctionRef<absl::Status(Endpoint&, absl::Duration)> call) {
  const absl::Time end = Now() + call_timeout_;
  const absl::Duration share =
      call_timeout_ / static_cast<double>(endpoints_.size());
  absl::Status status;
  for (size_t tried = 0; tried < endpoints_.size(); ++tried) {
    const absl::Duration left = end - Now();
    if (tried > 0 && left <= absl::ZeroDuration()) break;
    Endpoint& endpoint = Current();
    status = call(endpoint, std::min(share, left));
    if (absl::IsDeadlineExceeded(status) &&
        endpoint.channel->GetState(false) != GRPC_CHANNEL_READY) {
      status = absl::UnavailableError("can not be reached");
    }
    status = Annotate(status, "etcd at " + endpoint.address);
    if (!absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status)) {
      return status;
    }
    Leave(endpoint);
  }
  return status;
}

absl::StatusOr<pb::RangeResponse> EtcdClient::Range(
    const pb::RangeRequest& request) {
  pb::RangeResponse response;
  TL_RETURN_IF_ERROR(Try([&](Endpoint& endpoint, absl::Duration timeout) {
    Call call(this, timeout);
    return control::FromGrpc(
        endpoint.kv->Range(&call.context, request, &response));
  }));
  return response;
}

absl::StatusOr<pb::TxnResponse> EtcdClient::Txn(const pb::TxnRequest& request) {
  pb::TxnResponse response;
  TL_RETURN_IF_ERROR(Try([&](Endpoint& endpoint, absl::Duration timeout) {
    Call call(this, timeout);
    return control::FromGrpc(
        endpoint.kv->Txn(&call.context, request, &response));
  }));
  return response;
}

absl::StatusOr<EtcdClient::Lease> EtcdClient::GrantLease(absl::Duration ttl) {
  pb::LeaseGrantRequest request;
  request.set_ttl(std::max<int64_t>(1, absl::ToInt64Seconds(ttl)));
  pb::LeaseGrantResponse response;
  // One that was granted and not heard of runs out by itself.
  TL_RETURN_IF_ERROR(Try([&](Endpoint& endpoint, absl::Duration timeout) {
    Call call(this, timeout);
    return control::FromGrpc(
        endpoint.lease->LeaseGrant(&call.context, request, &response));
  }));
  if (!response.error().empty() || response.id() == 0 || response.ttl() <= 0) {
    return absl::UnavailableError(
        absl::StrCat("etcd granted no lease: id ", response.id(), ", ",
                     response.ttl(), " s ", response.error()));
  }
  return Lease{.id = response.id(), .ttl = absl::Seconds(response.ttl())};
}

absl::StatusOr<absl::Duration> EtcdClient::KeepLeaseAlive(int64_t id) {
  pb::LeaseKeepAliveRequest request;
  request.set_id(id);
  pb::LeaseKeepAliveResponse response;
  TL_RETURN_IF_ERROR(Try([&](Endpoint& endpoint, absl::Duration timeout) {
    Call call(this, timeout);
    const auto stream = endpoint.lease->LeaseKeepAlive(&call.context);
    const bool answered = stream->Write(request) && stream->Read(&response);
    if (answered) {
      // etcd ends its side once ours has ended.
      stream->WritesDone();
      call.context.TryCancel();
    }
    const grpc::Status status = stream->Finish();
    if (answered) return absl::OkStatus();
    if (status.ok()) return absl::UnavailableError("no answer");
    return control::FromGrpc(status);
  }));
  if (response.id() != id || response.ttl() <= 0) {
    return absl::NotFoundError(
        absl::StrCat("etcd's lease ", id, " has run out"));
  }
  return absl::Seconds(response.ttl());
}

absl::Status EtcdClient::RevokeLease(int64_t id) {
  pb::LeaseRevokeRequest request;
  request.set_id(id);
  return Try([&](Endpoint& endpoint, absl::Duration timeout) {
    Call call(this, timeout);
    pb::LeaseRevokeResponse response;
    return control::FromGrpc(
        endpoint.lease->LeaseRevoke(&call.context, request, &response));
  });
}

absl::StatusOr<int64_t> EtcdClient::WatchKey(
    const std::string& key, int64_t revision, absl::Duration patience,
    absl::FunctionRef<bool(const pb::Event&)> on_event) {
  pb::WatchRequest request;
  request.mutable_create_request()->set_key(key);
  request.mutable_create_request()->set_start_revision(revision);
  Endpoint& endpoint = Current();
  const std::string label = "etcd at " + endpoint.address;
  const absl::Time end = Now() + patience - kDeadlineSlack;
  Call call(this, patience);
  const auto stream = endpoint.watch->Watch(&call.context);
  bool created = false, go_on = stream->Write(request);
  absl::Status fault;
  pb::WatchResponse response;
  while (go_on && stream->Read(&response)) {
    created = created || response.created();
    if (response.compact_revision() > 0) {
      fault = absl::OutOfRangeError(
          absl::StrCat(label, ": revision ", revision,
                       " is compacted away, history begins at ",
                       response.compact_revision()));
      break;
    }
    if (response.canceled()) {
      fault = absl::UnavailableError(absl::StrCat(
          label, ": the watch was cancelled: ", response.cancel_reason()));
      break;
    }
    for (const pb::Event& event : response.events()) {
      go_on = on_event(event);
      revision = event.kv().mod_revision() + 1;
      if (!go_on) break;
    }
  }
  if (!go_on || !fault.ok()) call.context.TryCancel();
  const grpc::Status status = stream->Finish();
  if (!fault.ok()) return fault;
  // The caller has seen enough, or the time is over; either end may have been
  // the first to say so, each in its own words.
  if (created && (!go_on || Now() >= end)) return revision;
  if (status.error_code() != grpc::StatusCode::CANCELLED) Leave(endpoint);
  return Annotate(status.ok() ? absl::UnavailableError("the watch ended")
                              : control::FromGrpc(status),
                  label);
}

std::string PrefixEnd(std::string prefix) {
  while (!prefix.empty()) {
    if (static_cast<unsigned char>(prefix.back()) < 0xff) {
      ++prefix.back();
      return prefix;
    }
    prefix.pop_back();
  }
  return std::string(1, '\0');  // etcd: every key from here on
}

}  // namespace trunkline::coordinator
