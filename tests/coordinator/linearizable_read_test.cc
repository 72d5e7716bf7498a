// What a coordinator answers from memory is never older than what another one
// has said, whatever the first believes about its lease. Against a real etcd.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "common/log.h"
#include "common/metric_registry.h"
#include "common/status_macros.h"
#include "control/status_to_grpc.h"
#include "coordinator/coordinator_host.h"
#include "coordinator/store_etcd.h"
#include "tests/coordinator/cluster_fixture.h"
#include "tests/coordinator/etcd_process.h"
#include "tests/integration/eventually.h"

namespace trunkline::coordinator {
namespace {

using trunkline::testing::EtcdProcess;

// A coordinator without a server whose clock has stopped: it believes in its
// lease for ever, so that only the store can tell it otherwise.
class Believer {
 public:
  explicit Believer(EtcdProcess* etcd)
      : etcd_(etcd),
        registry_(std::make_shared<prometheus::Registry>()),
        metrics_(*registry_),
        host_(RebalanceOptions(), &metrics_) {
    host_.Start({.on_view = [](CoordinatorHost::SharedView, bool) {},
                 .on_role = [](const absl::Status&) {},
                 .on_deposed = [] {}});
  }

  absl::Status Lead() {
    EtcdLead lead{.key = EtcdLeaderKey("/reads")};
    TL_ASSIGN_OR_RETURN(lead.create_revision, trunkline::testing::TakeLead(
                                                  etcd_->client(), lead.key));
    TL_ASSIGN_OR_RETURN(std::unique_ptr<PlacementStore> store,
                        OpenEtcdStore(std::make_shared<EtcdClient>(
                                          etcd_->endpoints(), absl::Seconds(2)),
                                      "/reads", lead, 7));
    TL_ASSIGN_OR_RETURN(std::unique_ptr<DurableCoordinator> durable,
                        DurableCoordinator::Open(
                            TestOptions(1), std::move(store),
                            {.now = absl::UnixEpoch(), .wall = absl::Now()}));
    host_.Lead(std::move(durable), [] { return absl::InfiniteFuture(); });
    return absl::OkStatus();
  }

  absl::Status Pin(const std::string& reason) {
    return host_.Submit(PinEvent{.pinned = true, .reason = reason}, "Pin")
        .status;
  }
  absl::StatusOr<std::string> PinReason() {
    std::string reason;
    TL_RETURN_IF_ERROR(host_.Query(
        [&](const Coordinator& core) { reason = core.cluster().pin_reason; }));
    return reason;
  }
  CoordinatorHost& host() { return host_; }

 private:
  EtcdProcess* const etcd_;
  std::shared_ptr<prometheus::Registry> registry_;
  CoordinatorMetrics metrics_;
  CoordinatorHost host_;
};

class LinearizableRead : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(InitLogging("test", "reads", "error").ok());
    auto etcd = EtcdProcess::Start();
    ASSERT_TRUE(etcd.ok()) << etcd.status();
    etcd_ = *std::move(etcd);
  }
  std::unique_ptr<EtcdProcess> etcd_;
};

TEST_F(LinearizableRead, ADeposedLeaderAnswersNothingAndNamesWhoLeads) {
  // Each kind of read is the first that this one is asked.
  const std::pair<const char*, std::function<absl::Status(Believer&)>> reads[] =
      {{"query", [](Believer& b) { return b.PinReason().status(); }},
       {"view", [](Believer& b) { return b.host().View().status(); }},
       {"snapshot", [](Believer& b) { return b.host().Snapshot().status(); }},
       // Nothing is there to go back to, which is an answer too.
       {"refusal", [](Believer& b) {
          return b.host().Submit(RollbackEvent{}, "Rollback").status;
        }}};
  for (const auto& [name, read] : reads) {
    SCOPED_TRACE(name);
    Believer older(etcd_.get()), newer(etcd_.get());
    ASSERT_TRUE(older.Lead().ok());
    ASSERT_TRUE(older.Pin("older").ok());
    ASSERT_EQ(*older.PinReason(), "older");
    ASSERT_TRUE(newer.Lead().ok());
    ASSERT_TRUE(newer.Pin("newer").ok());
    const absl::Status status = read(older);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_TRUE(control::IsNotLeading(status)) << status;
    EXPECT_EQ(control::LeaderIn(status), "test:1") << status;
    // Nor later.
    EXPECT_EQ(older.PinReason().status().code(),
              absl::StatusCode::kUnavailable);
    EXPECT_EQ(*newer.PinReason(), "newer");
  }
}

TEST_F(LinearizableRead, WhileEtcdIsSilentNothingIsAnsweredAndThenTheSame) {
  Believer leader(etcd_.get());
  ASSERT_TRUE(leader.Lead().ok());
  ASSERT_TRUE(leader.Pin("mine").ok());
  etcd_->member().Signal(SIGSTOP);
  // It may still answer what reaches it before the signal does.
  absl::Status silent;
  EXPECT_TRUE(Eventually(std::chrono::seconds(20), [&] {
    silent = leader.PinReason().status();
    return !silent.ok();
  }));
  etcd_->member().Signal(SIGCONT);
  EXPECT_EQ(silent.code(), absl::StatusCode::kUnavailable) << silent;
  EXPECT_FALSE(control::IsNotLeading(silent)) << silent;
  ASSERT_TRUE(Eventually(std::chrono::seconds(20),
                         [&] { return leader.PinReason().ok(); }));
  EXPECT_EQ(*leader.PinReason(), "mine");
}

// A write of this very epoch that the memory does not hold, as one that was
// given up for lost and arrived: read anew before anything is answered.
TEST_F(LinearizableRead, WhatWasWrittenBehindItsBackIsReadFirst) {
  Believer leader(etcd_.get());
  ASSERT_TRUE(leader.Lead().ok());
  ASSERT_TRUE(leader.Pin("before").ok());
  const std::string cluster = etcd_->Get("/reads/cluster");
  ASSERT_TRUE(leader.Pin("after").ok());
  ASSERT_TRUE(etcd_->Put("/reads/cluster", cluster).ok());
  ASSERT_TRUE(etcd_->Put("/reads/commit", "1.1000").ok());
  const absl::StatusOr<std::string> reason = leader.PinReason();
  ASSERT_TRUE(reason.ok()) << reason.status();
  EXPECT_EQ(*reason, "before");
}

}  // namespace
}  // namespace trunkline::coordinator
