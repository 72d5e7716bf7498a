#pragma once

// etcd's v3 API over gRPC, as far as the placement store and the election need
// it: several endpoints tried in turn, every call with a deadline. All calls
// block. Thread-safe. etcd's messages and gRPC stay in etcd_*.cc and
// store_etcd.cc.

#include <grpcpp/client_context.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/etcd.grpc.pb.h"

namespace trunkline::coordinator {

class EtcdClient {
 public:
  // endpoints: "host:port", at least one. call_timeout: of a call, over all
  // endpoints that are tried.
  EtcdClient(std::vector<std::string> endpoints, absl::Duration call_timeout);
  ~EtcdClient();
  EtcdClient(const EtcdClient&) = delete;
  EtcdClient& operator=(const EtcdClient&) = delete;

  // Linearizable. Every error names the endpoint.
  absl::StatusOr<etcdserverpb::RangeResponse> Range(
      const etcdserverpb::RangeRequest& request);
  // May reach etcd more than once: its comparisons must make the second time
  // harmless. UNAVAILABLE or DEADLINE_EXCEEDED leave it unknown whether it
  // happened, and it may still happen.
  absl::StatusOr<etcdserverpb::TxnResponse> Txn(
      const etcdserverpb::TxnRequest& request);

  struct Lease {
    int64_t id = 0;
    absl::Duration ttl;  // as etcd granted it, which may be more than asked for
  };
  absl::StatusOr<Lease> GrantLease(absl::Duration ttl);
  // NOT_FOUND: it has run out.
  absl::StatusOr<absl::Duration> KeepLeaseAlive(int64_t id);
  absl::Status RevokeLease(int64_t id);

  // Follows one key from `revision` on (events of that revision included) for
  // at most `patience`: on_event gets each change in order, without a gap, and
  // says whether to go on. Returns the revision to go on from. OUT_OF_RANGE:
  // the history from `revision` on was compacted away; read the key again.
  absl::StatusOr<int64_t> WatchKey(
      const std::string& key, int64_t revision, absl::Duration patience,
      absl::FunctionRef<bool(const etcdserverpb::Event&)> on_event);

  // Ends the calls that are under way with CANCELLED.
  void Cancel();

 private:
  struct Endpoint;
  class Call;

  absl::Status Try(
      absl::FunctionRef<absl::Status(Endpoint&, absl::Duration)> call);
  Endpoint& Current();
  void Leave(const Endpoint& endpoint);

  const absl::Duration call_timeout_;
  std::vector<std::unique_ptr<Endpoint>> endpoints_;

  std::mutex mutex_;
  size_t current_ = 0;                    // by mutex_
  std::set<grpc::ClientContext*> calls_;  // by mutex_
};

// A range end that covers every key with this prefix.
std::string PrefixEnd(std::string prefix);

}  // namespace trunkline::coordinator
