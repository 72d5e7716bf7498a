#include "tests/coordinator/etcd_process.h"

#include <grpcpp/create_channel.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "control/status_to_grpc.h"
#include "tests/integration/eventually.h"

namespace trunkline::testing {
namespace {

namespace pb = etcdserverpb;

constexpr auto kStartLimit = std::chrono::seconds(20);

// Free now. Somebody may take it before etcd does; then etcd ends and the start
// is tried again.
int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in self{};
  self.sin_family = AF_INET;
  self.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(self);
  int port = 0;
  if (bind(fd, reinterpret_cast<sockaddr*>(&self), size) == 0 &&
      getsockname(fd, reinterpret_cast<sockaddr*>(&self), &size) == 0) {
    port = ntohs(self.sin_port);
  }
  close(fd);
  return port;
}

}  // namespace

absl::StatusOr<std::unique_ptr<EtcdProcess>> EtcdProcess::Start(int members) {
  absl::Status status;
  for (int attempt = 0; attempt < 3; ++attempt) {
    std::unique_ptr<EtcdProcess> etcd(new EtcdProcess());
    status = etcd->StartMembers(members);
    if (status.ok()) return etcd;
    status = Annotate(status, etcd->Logs());
  }
  return status;
}

absl::Status EtcdProcess::StartMembers(int members) {
  std::vector<std::string> peers, cluster;
  for (int i = 0; i < members; ++i) {
    endpoints_.push_back(absl::StrCat("127.0.0.1:", FreePort()));
    peers.push_back(absl::StrCat("http://127.0.0.1:", FreePort()));
    cluster.push_back(absl::StrCat("m", i, "=", peers.back()));
  }
  for (int i = 0; i < members; ++i) {
    const size_t at = static_cast<size_t>(i);
    const std::string client = "http://" + endpoints_[at];
    const std::string log = absl::StrCat(dir_.path(), "/etcd-", i, ".log");
    members_.push_back(std::make_unique<ChildProcess>(ChildProcess::Options{
        .argv = {"/usr/bin/etcd", "--name", absl::StrCat("m", i), "--data-dir",
                 absl::StrCat(dir_.path(), "/m", i), "--listen-client-urls",
                 client, "--advertise-client-urls", client,
                 "--listen-peer-urls", peers[at],
                 "--initial-advertise-peer-urls", peers[at],
                 "--initial-cluster", absl::StrJoin(cluster, ","), "--logger",
                 "zap", "--log-outputs", "stderr"},
        .environment = {{"GOMAXPROCS", "2"}},
        .stdout_file = log,
        .stderr_file = log,
        .stdin_text = ""}));
  }
  client_ =
      std::make_unique<coordinator::EtcdClient>(endpoints_, absl::Seconds(10));
  bool answers = false;
  absl::Status said;
  Eventually(kStartLimit, [&] {
    pb::RangeRequest request;
    request.set_key("/");
    said = client_->Range(request).status();
    answers = said.ok();
    for (const auto& member : members_) {
      if (!member->Running()) return true;  // its port was taken
    }
    return answers;
  });
  for (const auto& member : members_) answers = answers && member->Running();
  return answers ? absl::OkStatus()
                 : absl::UnavailableError(absl::StrCat(
                       "etcd did not start: ", std::string(said.message())));
}

std::string EtcdProcess::StoreFlag(const std::string& prefix) const {
  return absl::StrCat("etcd://", absl::StrJoin(endpoints_, ","), prefix);
}

std::string EtcdProcess::Get(const std::string& key) {
  pb::RangeRequest request;
  request.set_key(key);
  const auto found = client_->Range(request);
  return found.ok() && found->kvs_size() == 1 ? found->kvs(0).value() : "";
}

absl::Status EtcdProcess::Put(const std::string& key,
                              const std::string& value) {
  pb::TxnRequest request;
  request.add_success()->mutable_request_put()->set_key(key);
  request.mutable_success(0)->mutable_request_put()->set_value(value);
  return client_->Txn(request).status();
}

absl::Status EtcdProcess::Delete(const std::string& key) {
  pb::TxnRequest request;
  request.add_success()->mutable_request_delete_range()->set_key(key);
  return client_->Txn(request).status();
}

absl::Status EtcdProcess::Compact() {
  pb::RangeRequest look;
  look.set_key("/");
  TL_ASSIGN_OR_RETURN(const pb::RangeResponse now, client_->Range(look));
  const auto stub = pb::KV::NewStub(grpc::CreateChannel(
      endpoints_.front(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  pb::CompactionRequest request;
  request.set_revision(now.header().revision());
  request.set_physical(true);
  pb::CompactionResponse response;
  return control::FromGrpc(stub->Compact(&context, request, &response));
}

std::string EtcdProcess::Logs() const {
  std::string all;
  for (size_t i = 0; i < members_.size(); ++i) {
    absl::StrAppend(&all, "--- etcd-", i, "\n",
                    ReadFile(absl::StrCat(dir_.path(), "/etcd-", i, ".log")));
  }
  return all;
}

absl::StatusOr<int64_t> TakeLead(coordinator::EtcdClient& client,
                                 const std::string& key) {
  pb::TxnRequest leave;
  leave.add_success()->mutable_request_delete_range()->set_key(key);
  TL_RETURN_IF_ERROR(client.Txn(leave).status());
  pb::TxnRequest take;
  take.add_success()->mutable_request_put()->set_key(key);
  take.mutable_success(0)->mutable_request_put()->set_value("test:1");
  TL_ASSIGN_OR_RETURN(const pb::TxnResponse taken, client.Txn(take));
  return taken.header().revision();
}

}  // namespace trunkline::testing
