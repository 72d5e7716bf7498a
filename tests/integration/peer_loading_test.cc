// A real expert worker that has no weights on its disk joins a cluster that
// serves, takes experts from the others, and computes the same text.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <iostream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "control/coordinator_client.h"
#include "tests/integration/eventually.h"
#include "tests/integration/placement_admin_client.h"
#include "tests/integration/process_cluster.h"
#include "tests/integration/running_streams.h"
#include "tests/trunk_worker/http_get.h"

namespace trunkline::testing {
namespace {

constexpr auto kLimit = std::chrono::seconds(90);
const char kModel[] = TRUNKLINE_SOURCE_DIR "/models/demo";

class PeerLoadingProcess : public ::testing::Test {
 protected:
  void SetUp() override {
    thin_ = dir_.path() + "/thin";
    std::filesystem::create_directory(thin_);
    std::filesystem::copy_file(std::string(kModel) + "/config.json",
                               thin_ + "/config.json");
    const RunResult wrote =
        RunProgram({TRUNKLINE_BINARY, "inspect", kModel, "--write-manifest",
                    thin_ + "/expert_manifest.json"},
                   std::chrono::seconds(60));
    ASSERT_EQ(wrote.exit_code, 0) << wrote.err;
    ProcessCluster::Options options;
    options.model = kModel;
    auto cluster = ProcessCluster::Start(options);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
    admin_ =
        std::make_unique<PlacementAdminClient>(cluster_->coordinator_address());
  }
  void TearDown() override {
    if (HasFailure() && cluster_ != nullptr) std::cerr << cluster_->Logs();
  }

  const control::WorkerView* Find(const control::ClusterView& view,
                                  const std::string& name) {
    for (const control::WorkerView& worker : view.workers) {
      if (worker.name == name) return &worker;
    }
    return nullptr;
  }
  control::ClusterView View() {
    auto view = control::FetchCluster(cluster_->coordinator_address(),
                                      absl::Seconds(5));
    return view.ok() ? *std::move(view) : control::ClusterView();
  }
  // Everything that `from` holds goes to `to`, and the other way round.
  absl::Status Move(const std::string& from, const std::string& to) {
    admin::v1::ExportResponse exported;
    absl::Status status = admin_->Call(&PlacementAdminClient::Stub::Export,
                                       admin::v1::ExportRequest(), &exported);
    if (!status.ok()) return status;
    admin::v1::ApplyRequest request;
    const std::string old_name = "\"" + from + "\"";
    const std::string new_name = "\"" + to + "\"";
    request.set_document(absl::StrReplaceAll(
        exported.document(), {{old_name, new_name}, {new_name, old_name}}));
    admin::v1::PlanResponse plan;
    return admin_->Call(&PlacementAdminClient::Stub::Apply, request, &plan);
  }
  uint64_t AwaitConverged() {
    uint64_t version = 0;
    EXPECT_TRUE(
        Eventually(kLimit, [&] { return admin_->Converged(&version); }));
    return version;
  }

  TempDir dir_;
  std::string thin_;
  std::unique_ptr<ProcessCluster> cluster_;
  std::unique_ptr<PlacementAdminClient> admin_;
};

TEST_F(PeerLoadingProcess, AWorkerWithoutWeightsServesWhatItTookFromPeers) {
  AwaitConverged();
  RunningStreams streams(*cluster_, 2, 24);
  cluster_->AddExpert(thin_, {"--metrics-listen", "127.0.0.1:0"});
  std::string metrics;
  ASSERT_TRUE(Eventually(kLimit, [&] {
    const control::ClusterView view = View();
    const control::WorkerView* thin = Find(view, "expert-2");
    if (thin != nullptr) metrics = thin->metrics_address;
    return thin != nullptr && thin->alive;
  }));
  const absl::Status moved = Move("expert-1", "expert-2");
  ASSERT_TRUE(moved.ok()) << moved;
  const uint64_t version = AwaitConverged();
  EXPECT_EQ(version, 2u);
  const int before = streams.finished();
  EXPECT_TRUE(
      Eventually(kLimit, [&] { return streams.finished() >= before + 4; }));
  const std::string page = HttpGet(metrics, "/metrics");
  double from_peer = 0, from_disk = -1;
  for (const absl::string_view line : absl::StrSplit(page, '\n')) {
    double* value = nullptr;
    if (absl::StartsWith(line,
                         "trunkline_expert_experts_loaded{source=\"peer\"}")) {
      value = &from_peer;
    } else if (absl::StartsWith(
                   line, "trunkline_expert_experts_loaded{source=\"disk\"}")) {
      value = &from_disk;
    }
    if (value != nullptr) {
      EXPECT_TRUE(absl::SimpleAtod(line.substr(line.rfind(' ') + 1), value));
    }
  }
  EXPECT_GT(from_peer, 0);
  EXPECT_EQ(from_disk, 0);
  streams.Stop();
  EXPECT_EQ(streams.faults(), "");
  std::cerr << from_peer << " experts taken from peers, " << streams.finished()
            << " streams\n";
}

// The worker that holds them is killed before it can give them: the change
// fails by name, and what the thin worker does not have is never made up.
TEST_F(PeerLoadingProcess, WhatNobodyHasLoadedFailsByName) {
  AwaitConverged();
  cluster_->AddExpert(thin_);
  ASSERT_TRUE(Eventually(kLimit, [&] {
    const control::ClusterView view = View();
    const control::WorkerView* thin = Find(view, "expert-2");
    return thin != nullptr && thin->alive;
  }));
  cluster_->expert(1).Signal(SIGKILL);
  // Whether its lease has ended or not: it can not give anything.
  ASSERT_TRUE(
      Eventually(kLimit, [&] { return Move("expert-1", "expert-2").ok(); }));
  admin::v1::ShowResponse show;
  ASSERT_TRUE(Eventually(kLimit, [&] {
    if (!admin_->Show(&show).ok()) return false;
    for (const auto& info : show.versions()) {
      if (info.state() == control::v1::PLACEMENT_STATE_ABANDONED) return true;
    }
    return false;
  }));
  std::string reason;
  for (const auto& info : show.versions()) {
    if (info.state() == control::v1::PLACEMENT_STATE_ABANDONED) {
      reason = info.reason();
      break;
    }
  }
  EXPECT_THAT(reason, ::testing::HasSubstr("expert-2"));
  EXPECT_THAT(reason, ::testing::HasSubstr("layer"));
}

}  // namespace
}  // namespace trunkline::testing
