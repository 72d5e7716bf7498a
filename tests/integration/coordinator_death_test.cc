// A coordinator dies at each point of a placement change, with its state in a
// file and in etcd: the next one finishes what had begun, and no stream
// notices.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <iostream>

#include "tests/coordinator/etcd_process.h"
#include "tests/integration/eventually.h"
#include "tests/integration/placement_admin_client.h"
#include "tests/integration/process_cluster.h"
#include "tests/integration/running_streams.h"

namespace trunkline::testing {
namespace {

constexpr auto kLimit = std::chrono::seconds(90);
constexpr int kExperts = 3;

struct Point {
  const char* name;
  // The change that was under way is finished, given up, or never happened.
  enum class End { kActive, kGivenUp, kNever } end;
};

const Point kPoints[] = {
    {"stage:before", Point::End::kNever},
    {"stage:after", Point::End::kActive},
    {"report:before", Point::End::kActive},
    {"report:after", Point::End::kActive},
    {"activate:before", Point::End::kActive},
    {"activate:after", Point::End::kActive},
    {"retire:before", Point::End::kActive},
    {"retire:after", Point::End::kActive},
    {"abandon:before", Point::End::kActive},
    {"abandon:after", Point::End::kGivenUp},
};

class CoordinatorDeath : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    ProcessCluster::Options options;
    options.model = std::string(TRUNKLINE_SOURCE_DIR) + "/models/demo";
    options.experts = kExperts;
    options.coordinator_program = TRUNKLINE_DYING_COORDINATOR;
    std::string store = "sqlite:" + dir_.path() + "/state.db";
    if (GetParam() == "Etcd") {
      auto etcd = EtcdProcess::Start();
      ASSERT_TRUE(etcd.ok()) << etcd.status();
      etcd_ = *std::move(etcd);
      store = etcd_->StoreFlag("/cluster");
      // One dies, the other follows.
      options.coordinators = 2;
    }
    options.coordinator_flags = {"--store", store, "--arm-file", ArmFile()};
    auto cluster = ProcessCluster::Start(options);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
    admin_ =
        std::make_unique<PlacementAdminClient>(cluster_->coordinator_address());
  }
  void TearDown() override {
    if (HasFailure() && cluster_ != nullptr) std::cerr << cluster_->Logs();
  }

  std::string ArmFile() const { return dir_.path() + "/arm"; }
  bool Armed() const { return !ReadFile(ArmFile()).empty(); }

  uint64_t AwaitConverged() {
    uint64_t version = 0;
    EXPECT_TRUE(
        Eventually(kLimit, [&] { return admin_->Converged(&version); }));
    return version;
  }

  // Starts changes until the point is reached and the leader is gone. The
  // version that was under way then.
  uint64_t DieAt(const std::string& point) {
    uint64_t version = AwaitConverged();
    WriteFile(ArmFile(), point);
    const bool give_up = point.rfind("abandon", 0) == 0;
    EXPECT_TRUE(Eventually(kLimit, [&] {
      if (!Armed()) return true;
      admin::v1::ShowResponse show;
      if (!admin_->Show(&show).ok()) return !Armed();
      for (const auto& info : show.versions()) {
        version = std::max(version, info.version());
      }
      const absl::Status status = admin_->Rotate(kExperts);
      if (!status.ok()) {  // one is under way, or the leader died
        if (!Armed()) ++version;
        return !Armed();
      }
      ++version;
      if (!give_up) return Eventually(kLimit, [&] { return !Armed(); });
      // It may have been loaded in time; then the next one is given up.
      admin::v1::AbandonRequest request;
      request.set_version(version);
      admin::v1::ChangeResponse response;
      admin_->Call(&PlacementAdminClient::Stub::Abandon, request, &response)
          .IgnoreError();
      return !Armed();
    })) << point;
    return version;
  }

  // Whoever died is started again.
  void Revive() {
    const int coordinators = GetParam() == "Etcd" ? 2 : 1;
    int died = -1;
    ASSERT_TRUE(Eventually(kLimit, [&] {
      for (int i = 0; i < coordinators; ++i) {
        if (!cluster_->coordinator(i).Running()) died = i;
      }
      return died >= 0;
    }));
    const auto status = cluster_->coordinator(died).Wait(kLimit);
    ASSERT_TRUE(status.has_value() && WIFSIGNALED(*status) &&
                WTERMSIG(*status) == SIGKILL);
    // With etcd the other one takes over by itself; this one comes back as its
    // follower, for the next round.
    if (coordinators > 1) AwaitConverged();
    ASSERT_TRUE(cluster_->RestartCoordinator(died).ok());
  }

  TempDir dir_;
  std::unique_ptr<EtcdProcess> etcd_;
  std::unique_ptr<ProcessCluster> cluster_;
  std::unique_ptr<PlacementAdminClient> admin_;
};

TEST_P(CoordinatorDeath, AtAnyPointOfAChangeLosesNothingAndStopsNoStream) {
  AwaitConverged();
  RunningStreams streams(*cluster_, 2, 24);
  for (const Point& point : kPoints) {
    SCOPED_TRACE(point.name);
    const uint64_t before = AwaitConverged();
    const uint64_t under_way = DieAt(point.name);
    if (HasFailure()) return;
    Revive();
    if (HasFailure()) return;
    const uint64_t after = AwaitConverged();
    if (HasFailure()) return;
    EXPECT_GE(after, before);
    admin::v1::ShowResponse show;
    ASSERT_TRUE(admin_->Show(&show).ok());
    control::v1::PlacementState state =
        control::v1::PLACEMENT_STATE_UNSPECIFIED;
    for (const auto& info : show.versions()) {
      if (info.version() == under_way) state = info.state();
    }
    switch (point.end) {
      case Point::End::kActive:
        EXPECT_EQ(after, under_way);
        break;
      case Point::End::kGivenUp:
        EXPECT_EQ(state, control::v1::PLACEMENT_STATE_ABANDONED);
        EXPECT_LT(after, under_way);
        break;
      case Point::End::kNever:
        // Its answer was an error; asked again it happens.
        EXPECT_EQ(after, before);
        ASSERT_TRUE(admin_->Rotate(kExperts).ok());
        EXPECT_GT(AwaitConverged(), before);
        break;
    }
    EXPECT_EQ(streams.faults(), "");
    std::cerr << point.name << ": version " << before << " -> " << after
              << ", epoch " << show.epoch() << ", " << streams.finished()
              << " streams so far\n";
    if (HasFailure()) return;
  }
  streams.Stop();
  EXPECT_EQ(streams.faults(), "");
  EXPECT_GT(streams.finished(), 0);
}

INSTANTIATE_TEST_SUITE_P(Stores, CoordinatorDeath,
                         ::testing::Values("Sqlite", "Etcd"),
                         [](const auto& suite) { return suite.param; });

}  // namespace
}  // namespace trunkline::testing
