// Client and server over real gRPC on loopback: joining, watching, restarts,
// outages, refusals.

#include "coordinator/coordinator_server.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "control/cluster_proto.h"
#include "control/control_channel.h"
#include "control/coordinator_client.h"
#include "proto/control.grpc.pb.h"
#include "tests/coordinator/cluster_fixture.h"
#include "tests/coordinator/fake_worker.h"
#include "tests/integration/idle_use.h"

namespace trunkline::coordinator {
namespace {

using control::ClusterView;
using testing::HasSubstr;

class CoordinatorServerTest : public testing::Test {
 protected:
  // Once: the log may not be replaced while clients write to it.
  static void SetUpTestSuite() {
    ASSERT_TRUE(InitLogging("test", "coordinator", "error").ok());
  }
  void SetUp() override {
    options_.listen = "127.0.0.1:0";
    options_.expert_workers = 2;
    options_.lease = absl::Milliseconds(600);
    state_ = std::filesystem::path(testing::TempDir()) /
             absl::StrCat("coordinator-", getpid(), ".db");
  }
  void TearDown() override {
    server_.reset();
    for (const char* suffix : {"", "-wal", "-shm"}) {
      std::filesystem::remove(state_.string() + suffix);
    }
  }
  void Start() {
    auto server = CoordinatorServer::Start(options_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    // A restart gets the same port.
    options_.listen = server_->address();
  }
  void StopServer() { server_.reset(); }

  CoordinatorOptions options_;
  std::filesystem::path state_;
  std::unique_ptr<CoordinatorServer> server_;
};

// The watcher wakes with the registration; a view that overtook it reached a
// trunk that then stamped its frames with no cluster.
TEST_F(CoordinatorServerTest, AWorkerKnowsWhoItIsBeforeItSeesAView) {
  Start();
  for (int i = 0; i < 100; ++i) {
    FakeWorker worker(server_->address(), absl::StrCat("w", i), kTrunkRole);
    ASSERT_TRUE(worker.AwaitView([](const ClusterView&) { return true; }));
    ASSERT_EQ(worker.views_before_identity(), 0) << "worker " << i;
  }
}

TEST_F(CoordinatorServerTest, WorkersJoinInAnyOrderAndSeeTheActivePlacement) {
  Start();
  FakeWorker a(server_->address(), "a", kExpertRole);
  FakeWorker trunk(server_->address(), "t", kTrunkRole);
  FakeWorker b(server_->address(), "b", kExpertRole);
  ASSERT_TRUE(trunk.AwaitActive(1));
  ASSERT_TRUE(a.AwaitActive(1));
  const ClusterView view = trunk.views().back();
  EXPECT_EQ(view.workers.size(), 3u);
  EXPECT_TRUE(
      placement::ValidatePlacement(view.placements[0].map, TestShapes()).ok());
  const auto views = trunk.views();
  for (size_t i = 1; i < views.size(); ++i) {
    EXPECT_GT(views[i].revision, views[i - 1].revision);
  }
  const auto fetched = control::FetchCluster(server_->address(), kPatience);
  ASSERT_TRUE(fetched.ok()) << fetched.status();
  EXPECT_EQ(fetched->active, PlacementVersion(1));
  EXPECT_EQ(fetched->moe_layers.size(), 2u);
}

// Processes may start in any order: the coordinator too.
TEST_F(CoordinatorServerTest, AWorkerThatIsThereFirstFindsTheCoordinatorLater) {
  Start();
  const std::string address = server_->address();
  StopServer();
  FakeWorker a(address, "a", kExpertRole);
  FakeWorker b(address, "b", kExpertRole);
  Start();
  EXPECT_TRUE(a.AwaitActive(1));
  EXPECT_TRUE(b.AwaitActive(1));
}

TEST_F(CoordinatorServerTest, ARestartWithItsFileIsNoticedByNobody) {
  options_.state_file = state_.string();
  Start();
  FakeWorker a(server_->address(), "a", kExpertRole);
  FakeWorker b(server_->address(), "b", kExpertRole);
  FakeWorker trunk(server_->address(), "t", kTrunkRole);
  ASSERT_TRUE(trunk.AwaitActive(1));
  const uint64_t cluster_id = trunk.views().back().cluster_id;
  StopServer();
  Start();
  ASSERT_TRUE(trunk.AwaitView([](const ClusterView& view) {
    return view.epoch == 2 && view.active == PlacementVersion(1);
  }));
  EXPECT_EQ(trunk.views().back().cluster_id, cluster_id);
  // Every view of the new epoch shows the workers alive and ready.
  for (const ClusterView& view : trunk.views()) {
    if (view.epoch == 2) {
      EXPECT_EQ(view.waiting_for, "");
    }
  }
  EXPECT_EQ(a.identities().size(), 1u);
}

TEST_F(CoordinatorServerTest, ARestartWithoutAFileFormsTheClusterAnew) {
  Start();
  FakeWorker a(server_->address(), "a", kExpertRole);
  FakeWorker b(server_->address(), "b", kExpertRole);
  ASSERT_TRUE(a.AwaitActive(1));
  const uint64_t cluster_id = a.views().back().cluster_id;
  StopServer();
  Start();
  ASSERT_TRUE(a.AwaitView([&](const ClusterView& view) {
    return view.cluster_id != cluster_id && view.active.valid() &&
           view.waiting_for.empty();
  }));
  EXPECT_EQ(a.identities().size(), 2u);
}

TEST_F(CoordinatorServerTest, AWorkerThatStoppedLosesItsLeaseForAllToSee) {
  Start();
  FakeWorker trunk(server_->address(), "t", kTrunkRole);
  {
    FakeWorker a(server_->address(), "a", kExpertRole);
    FakeWorker b(server_->address(), "b", kExpertRole);
    ASSERT_TRUE(trunk.AwaitActive(1));
  }  // both say goodbye
  EXPECT_TRUE(trunk.AwaitView([](const ClusterView& view) {
    return std::count_if(view.workers.begin(), view.workers.end(),
                         [](const auto& worker) { return worker.alive; }) == 1;
  }));
  EXPECT_THAT(trunk.views().back().waiting_for, HasSubstr("has left"));
}

TEST_F(CoordinatorServerTest, AnotherModelIsRefusedForGood) {
  Start();
  FakeWorker a(server_->address(), "a", kExpertRole);
  ASSERT_TRUE(a.Await([](const auto& w) { return w.registrations() == 1; }));
  control::Registration other = TestRegistration("b", kExpertRole);
  other.model_digest = "digest-b";
  FakeWorker b(server_->address(), other);
  ASSERT_TRUE(b.Await([](const auto& w) { return !w.refusal().ok(); }));
  EXPECT_EQ(b.refused().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(b.refused().message()), HasSubstr("digest-b"));
  control::Registration unnamed = TestRegistration("", kExpertRole);
  FakeWorker c(server_->address(), unnamed);
  ASSERT_TRUE(c.Await([](const auto& w) { return !w.refusal().ok(); }));
  EXPECT_EQ(c.refused().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(CoordinatorServerTest, TheOlderProcessOfANameIsToldToStop) {
  Start();
  FakeWorker older(server_->address(), "a", kExpertRole);
  ASSERT_TRUE(
      older.Await([](const auto& w) { return w.registrations() == 1; }));
  FakeWorker newer(server_->address(), "a", kExpertRole);
  ASSERT_TRUE(older.Await([](const auto& w) { return !w.refusal().ok(); }));
  EXPECT_THAT(std::string(older.refused().message()), HasSubstr("replaced"));
  EXPECT_TRUE(newer.refused().ok());
}

TEST_F(CoordinatorServerTest, StopIsPromptWhileTheCoordinatorIsAway) {
  Start();
  const std::string address = server_->address();
  auto before = std::make_unique<FakeWorker>(address, "a", kExpertRole);
  ASSERT_TRUE(
      before->Await([](const auto& w) { return w.registrations() == 1; }));
  StopServer();
  auto never = std::make_unique<FakeWorker>(address, "b", kExpertRole);
  for (FakeWorker* worker : {before.get(), never.get()}) {
    const absl::Time began = absl::Now();
    worker->client().Stop();
    worker->client().Stop();
    EXPECT_LT(absl::Now() - began, absl::Seconds(3));
  }
}

// A listener that accepts and never answers is what a stopped process looks
// like.
TEST_F(CoordinatorServerTest, StopIsPromptWhileTheCoordinatorHangs) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in self{};
  self.sin_family = AF_INET;
  self.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&self), sizeof(self)), 0);
  ASSERT_EQ(listen(fd, 8), 0);
  socklen_t size = sizeof(self);
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&self), &size), 0);
  FakeWorker a(absl::StrCat("127.0.0.1:", ntohs(self.sin_port)), "a",
               kExpertRole);
  const int connection = accept(fd, nullptr, nullptr);  // a call is under way
  const absl::Time began = absl::Now();
  a.client().Stop();
  EXPECT_LT(absl::Now() - began, absl::Seconds(3));
  close(connection);
  close(fd);
}

TEST_F(CoordinatorServerTest, BadMessagesAreRefusedNamingTheField) {
  Start();
  namespace wire = control::wire;
  const auto stub = wire::Coordinator::NewStub(
      control::OpenControlChannel(server_->address()));
  const auto expect = [](const grpc::Status& status, grpc::StatusCode code,
                         const std::string& said) {
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(said));
  };
  const auto context = [] {
    auto made = std::make_unique<grpc::ClientContext>();
    made->set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
    return made;
  };
  wire::RegisterResponse registered;
  wire::RegisterRequest request =
      control::ToProto(TestRegistration("a", kExpertRole));
  request.set_role(static_cast<wire::WorkerRole>(9));
  expect(stub->Register(context().get(), request, &registered),
         grpc::StatusCode::INVALID_ARGUMENT, "role");
  request = control::ToProto(TestRegistration("a", kExpertRole));
  request.mutable_moe_layers(0)->set_experts(0);
  expect(stub->Register(context().get(), request, &registered),
         grpc::StatusCode::INVALID_ARGUMENT, "moe_layers[0].experts");
  wire::HeartbeatResponse beat;
  wire::HeartbeatRequest heartbeat;
  heartbeat.set_worker_id(WorkerId::kNone);
  expect(stub->Heartbeat(context().get(), heartbeat, &beat),
         grpc::StatusCode::INVALID_ARGUMENT, "worker_id");
  heartbeat.set_worker_id(3);
  heartbeat.add_versions()->set_version(0);
  expect(stub->Heartbeat(context().get(), heartbeat, &beat),
         grpc::StatusCode::INVALID_ARGUMENT, "versions[0].version");
  wire::LeaveResponse left;
  wire::LeaveRequest leave;
  leave.set_worker_id(3);
  expect(stub->Leave(context().get(), leave, &left),
         grpc::StatusCode::NOT_FOUND, "registered in cluster 0");
  leave.set_cluster_id(
      control::FetchCluster(server_->address(), kPatience)->cluster_id);
  expect(stub->Leave(context().get(), leave, &left),
         grpc::StatusCode::NOT_FOUND, "worker 3");
  wire::WatchRequest watch;
  watch.set_worker_id(3);
  const auto watching = context();
  auto reader = stub->Watch(watching.get(), watch);
  wire::ClusterView view;
  EXPECT_FALSE(reader->Read(&view));
  expect(reader->Finish(), grpc::StatusCode::NOT_FOUND, "worker 3");
}

TEST_F(CoordinatorServerTest, WatchersAreBoundedAndEndWithTheServer) {
  options_.watchers_max = 3;
  Start();
  namespace wire = control::wire;
  const auto stub = wire::Coordinator::NewStub(
      control::OpenControlChannel(server_->address()));
  wire::WatchRequest watch;
  watch.set_worker_id(WorkerId::kNone);
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<wire::ClusterView>>> readers;
  wire::ClusterView view;
  for (int i = 0; i < 3; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    readers.push_back(stub->Watch(contexts.back().get(), watch));
    ASSERT_TRUE(readers.back()->Read(&view));
    EXPECT_EQ(view.waiting_for(), "no worker has registered");
  }
  grpc::ClientContext fourth;
  auto refused = stub->Watch(&fourth, watch);
  EXPECT_FALSE(refused->Read(&view));
  EXPECT_EQ(refused->Finish().error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  // One that goes away makes room.
  contexts[0]->TryCancel();
  while (readers[0]->Read(&view)) {
  }
  readers[0]->Finish();
  bool opened = false;
  for (int i = 0; i < 200 && !opened; ++i) {
    grpc::ClientContext again;
    auto reader = stub->Watch(&again, watch);
    opened = reader->Read(&view);
    again.TryCancel();
    while (reader->Read(&view)) {
    }
    reader->Finish();
  }
  EXPECT_TRUE(opened);
  server_->Shutdown(absl::Seconds(5));
  while (readers[1]->Read(&view)) {
  }
  EXPECT_EQ(readers[1]->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  while (readers[2]->Read(&view)) {
  }
  readers[2]->Finish();
}

TEST_F(CoordinatorServerTest, OptionsThatMakeNoSenseAreNamed) {
  const auto refused = [&](auto change, const std::string& said) {
    CoordinatorOptions options = options_;
    change(options);
    const auto server = CoordinatorServer::Start(options);
    EXPECT_FALSE(server.ok()) << said;
    EXPECT_THAT(std::string(server.status().message()), HasSubstr(said));
  };
  refused([](auto& o) { o.listen = "nowhere"; }, "listen");
  refused([](auto& o) { o.listen = "127.0.0.1:99999"; }, "listen");
  refused([](auto& o) { o.metrics = "x"; }, "metrics");
  refused([](auto& o) { o.expert_workers = 0; }, "expert_workers");
  refused([](auto& o) { o.replicas = 3; }, "replicas");
  refused([](auto& o) { o.lease = absl::Milliseconds(1); }, "lease");
  refused([](auto& o) { o.log_level = "loud"; }, "loud");
  refused([](auto& o) { o.watchers_max = 0; }, "watchers_max");
  refused([](auto& o) { o.repair_delay = absl::ZeroDuration(); },
          "repair_delay");
  refused([](auto& o) { o.state_file = "/no/such/folder/s.db"; },
          "/no/such/folder/s.db");
  Start();
  refused([&](auto& o) { o.listen = server_->address(); }, "in use");
}

TEST_F(CoordinatorServerTest, AnIdleClusterNeitherSpinsNorPolls) {
  Start();
  FakeWorker a(server_->address(), "a", kExpertRole);
  FakeWorker b(server_->address(), "b", kExpertRole);
  ASSERT_TRUE(a.AwaitActive(1));
  const IdleUse use =
      MeasureIdleUse(std::chrono::seconds(2), [](auto interval) {
        poll(nullptr, 0, static_cast<int>(interval.count()));
      });
  // A server and two workers that renew a short lease.
  EXPECT_LT(use.cores, 0.25);
  EXPECT_LT(use.wake_ups_per_second, 500);
}

}  // namespace
}  // namespace trunkline::coordinator
