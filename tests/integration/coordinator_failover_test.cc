// Three coordinators that share an etcd: who leads dies or stops, another one
// takes over, and the one that comes back has nothing to say any more.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <iostream>

#include "control/control_channel.h"
#include "control/coordinator_client.h"
#include "control/status_to_grpc.h"
#include "proto/control.grpc.pb.h"
#include "tests/coordinator/etcd_process.h"
#include "tests/integration/eventually.h"
#include "tests/integration/placement_admin_client.h"
#include "tests/integration/process_cluster.h"
#include "tests/integration/running_streams.h"

namespace trunkline::testing {
namespace {

using ::testing::HasSubstr;

constexpr auto kLimit = std::chrono::seconds(90);
constexpr int kCoordinators = 3;

class CoordinatorFailover : public ::testing::Test {
 protected:
  void SetUp() override {
    auto etcd = EtcdProcess::Start();
    ASSERT_TRUE(etcd.ok()) << etcd.status();
    etcd_ = *std::move(etcd);
    ProcessCluster::Options options;
    options.model = std::string(TRUNKLINE_SOURCE_DIR) + "/models/demo";
    options.coordinators = kCoordinators;
    options.coordinator_flags = {"--store", etcd_->StoreFlag("/cluster")};
    auto cluster = ProcessCluster::Start(options);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
    admin_ =
        std::make_unique<PlacementAdminClient>(cluster_->coordinator_address());
  }
  void TearDown() override {
    if (HasFailure() && cluster_ != nullptr) std::cerr << cluster_->Logs();
  }

  // Which coordinator the leader key names; -1: none.
  int Leader() {
    const std::string address = etcd_->Get("/cluster/leader");
    for (int i = 0; i < kCoordinators; ++i) {
      if (cluster_->coordinator_address(i) == address) return i;
    }
    return -1;
  }
  // Waits until another one than `old` leads and answers. How long it took.
  absl::Duration AwaitAnother(int old) {
    const absl::Time began = absl::Now();
    EXPECT_TRUE(Eventually(kLimit, [&] {
      const int leader = Leader();
      return leader >= 0 && leader != old && Ask(leader, absl::Seconds(1)).ok();
    }));
    return absl::Now() - began;
  }
  // GetCluster of exactly this one.
  absl::Status Ask(int i, absl::Duration timeout) {
    namespace wire = control::v1;
    const auto stub = wire::Coordinator::NewStub(
        control::OpenControlChannel(cluster_->coordinator_address(i)));
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    wire::ClusterView view;
    return control::FromGrpc(
        stub->GetCluster(&context, wire::GetClusterRequest(), &view));
  }
  void AwaitConverged() {
    uint64_t version = 0;
    EXPECT_TRUE(
        Eventually(kLimit, [&] { return admin_->Converged(&version); }));
  }

  std::unique_ptr<EtcdProcess> etcd_;
  std::unique_ptr<ProcessCluster> cluster_;
  std::unique_ptr<PlacementAdminClient> admin_;
};

TEST_F(CoordinatorFailover, WhenTheLeaderIsKilledAFollowerTakesOver) {
  AwaitConverged();
  RunningStreams streams(*cluster_, 2, 24);
  for (int round = 0; round < 3; ++round) {
    const int old = Leader();
    ASSERT_GE(old, 0);
    // A follower names the leader, soon after its own start.
    absl::Status follower;
    EXPECT_TRUE(Eventually(kLimit, [&] {
      follower = Ask((old + 1) % kCoordinators, absl::Seconds(10));
      return control::LeaderIn(follower) == cluster_->coordinator_address(old);
    })) << follower;
    EXPECT_EQ(follower.code(), absl::StatusCode::kUnavailable);
    cluster_->coordinator(old).Signal(SIGKILL);
    const absl::Duration took = AwaitAnother(old);
    std::cerr << "another coordinator leads after "
              << absl::FormatDuration(took) << "\n";
    AwaitConverged();
    ASSERT_TRUE(admin_->Rotate(2).ok());
    AwaitConverged();
    ASSERT_TRUE(cluster_->RestartCoordinator(old).ok());
  }
  streams.Stop();
  EXPECT_EQ(streams.faults(), "");
  EXPECT_GT(streams.finished(), 0);
}

TEST_F(CoordinatorFailover, ALeaderThatWasPausedWritesAndAnswersNothing) {
  AwaitConverged();
  const int old = Leader();
  ASSERT_GE(old, 0);
  cluster_->coordinator(old).Signal(SIGSTOP);
  const absl::Duration took = AwaitAnother(old);
  std::cerr << "another coordinator leads after " << absl::FormatDuration(took)
            << "\n";
  AwaitConverged();
  const std::string epoch = etcd_->Get("/cluster/epoch");
  // These lie in its socket when it wakes, and it believes for that moment that
  // it leads.
  const auto stub = admin::v1::PlacementAdmin::NewStub(
      control::OpenControlChannel(cluster_->coordinator_address(old)));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(30)));
  admin::v1::PinRequest pin;
  pin.set_pinned(true);
  pin.set_reason("by the deposed one");
  admin::v1::PinResponse pinned;
  cluster_->coordinator(old).Signal(SIGCONT);
  const absl::Status status =
      control::FromGrpc(stub->Pin(&context, pin, &pinned));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  ASSERT_TRUE(Eventually(kLimit, [&] {
    return control::LeaderIn(Ask(old, absl::Seconds(5))) ==
           etcd_->Get("/cluster/leader");
  }));
  admin::v1::ShowResponse show;
  ASSERT_TRUE(admin_->Show(&show).ok());
  EXPECT_FALSE(show.pinned());
  EXPECT_EQ(etcd_->Get("/cluster/epoch"), epoch);
  for (const admin::v1::WorkerInfo& info : show.workers()) {
    EXPECT_TRUE(info.worker().alive()) << info.worker().name();
    EXPECT_EQ(info.worker().incarnation(), 1u) << info.worker().name();
  }
}

TEST_F(CoordinatorFailover, AnOrderlyStopHandsTheLeadOverAtOnce) {
  AwaitConverged();
  const int old = Leader();
  ASSERT_GE(old, 0);
  cluster_->coordinator(old).Signal(SIGTERM);
  std::cerr << "another coordinator leads after "
            << absl::FormatDuration(AwaitAnother(old)) << "\n";
  const auto status = cluster_->coordinator(old).Wait(kLimit);
  ASSERT_TRUE(status.has_value());
  EXPECT_TRUE(WIFEXITED(*status) && WEXITSTATUS(*status) == 0);
  AwaitConverged();
}

}  // namespace
}  // namespace trunkline::testing
