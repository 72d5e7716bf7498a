// Placements, failures and drains under running streams: the texts are those of
// the undisturbed run, bit for bit, and nothing waits for ever.
//
// TRUNKLINE_TEST_RUNS sets how often the random ones are repeated
// (docs/testing.md).

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>

#include "tests/integration/placement_admin.h"
#include "tests/integration/placement_documents.h"
#include "tests/integration/stream_load.h"

namespace trunkline::testing {
namespace {

using ::testing::HasSubstr;

constexpr auto kPatience = std::chrono::seconds(60);
constexpr int kClients = 8;

int Runs(int otherwise) {
  const char* set = std::getenv("TRUNKLINE_TEST_RUNS");
  return set == nullptr ? otherwise : std::max(1, std::atoi(set));
}

class PlacementUnderLoad : public ::testing::Test {
 protected:
  void Start(ProcessCluster::Options options, uint32_t tokens = 96) {
    options.model = std::string(TRUNKLINE_SOURCE_DIR) + "/models/demo";
    auto cluster = ProcessCluster::Start(options);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
    admin_ = std::make_unique<PlacementAdmin>(cluster_->coordinator_address());
    ASSERT_TRUE(admin_->AwaitWhole());
    texts_ = UndisturbedTexts(*cluster_, kClients, tokens);
  }
  void TearDown() override {
    if (HasFailure() && cluster_ != nullptr) std::cerr << cluster_->Logs();
  }
  void ExpectAllAsUndisturbed(const std::vector<TimedStream>& streams) {
    for (const TimedStream& stream : streams) {
      EXPECT_TRUE(stream.status.ok()) << "client " << stream.client << ": "
                                      << stream.status.error_message();
      EXPECT_TRUE(stream.as_undisturbed)
          << "client " << stream.client << " got another text";
    }
  }

  std::unique_ptr<ProcessCluster> cluster_;
  std::unique_ptr<PlacementAdmin> admin_;
  std::vector<LoadText> texts_;
  RandomStream random_{2026};
};

TEST_F(PlacementUnderLoad, TwentyRandomPlacementsChangeNoTextAndPauseNoStream) {
  Start({.experts = 3});
  StreamLoad load(*cluster_, texts_);
  ASSERT_TRUE(Eventually(kPatience, [&] { return load.AllStreaming(); }));
  for (int i = 0; i < 20; ++i) {
    std::string why;
    const uint64_t version = admin_->Apply(
        ShufflePlacement(admin_->Export(), 1 + random_.NextBelow(2), random_),
        &why);
    ASSERT_GT(version, 0u) << why;
    ASSERT_TRUE(admin_->AwaitSettled(version)) << "version " << version;
    EXPECT_EQ(admin_->Show().active_version(), version);
  }
  const std::vector<TimedStream>& streams = load.Stop();
  ExpectAllAsUndisturbed(streams);
  EXPECT_GE(streams.size(), static_cast<size_t>(kClients));
  double longest = 0;
  for (const TimedStream& stream : streams) {
    const double median = MedianStep(stream).count();
    const double pause = LongestPause(stream).count();
    longest = std::max(longest, pause);
    EXPECT_LE(pause, 2 * median + 1000) << "client " << stream.client;
  }
  std::cout << "[ figures  ] 20 placements, " << streams.size()
            << " streams, longest pause " << longest << " ms\n";
}

TEST_F(PlacementUnderLoad, AKilledExpertWorkerIsReplacedByReplicasInTheStep) {
  Start({.experts = 3, .replicas = 2});
  const int runs = Runs(6);
  std::vector<double> resumed;
  for (int run = 0; run < runs; ++run) {
    StreamLoad load(*cluster_, texts_, /*once=*/true);
    const int64_t all = kClients * static_cast<int64_t>(texts_[0].ids.size());
    const int64_t moment = static_cast<int64_t>(
        random_.NextBelow(static_cast<uint64_t>(all * 3 / 4)));
    ASSERT_TRUE(Eventually(kPatience, [&] { return load.tokens() >= moment; }));
    const int victim = static_cast<int>(random_.NextBelow(3));
    const SteadyTime killed = std::chrono::steady_clock::now();
    cluster_->expert(victim).Signal(SIGKILL);
    const std::vector<TimedStream>& streams = load.Stop();
    ASSERT_EQ(streams.size(), static_cast<size_t>(kClients));
    ExpectAllAsUndisturbed(streams);
    double longest = 0;
    for (const TimedStream& stream : streams)
      longest = std::max(longest, LongestPause(stream, killed).count());
    resumed.push_back(longest);
    ASSERT_TRUE(cluster_->expert(victim).Wait(kPatience).has_value());
    cluster_->RestartExpert(victim);
    ASSERT_TRUE(admin_->AwaitWhole()) << "run " << run;
    if (HasFailure()) return;
  }
  std::sort(resumed.begin(), resumed.end());
  std::cout << "[ figures  ] " << runs
            << " kills, from kill to resumed: median "
            << resumed[resumed.size() / 2] << " ms, max " << resumed.back()
            << " ms\n";
  EXPECT_LT(resumed.back(), 2000);
}

TEST_F(PlacementUnderLoad, WithoutAReplicaStreamsGoOnAfterTheRepair) {
  Start({.experts = 3,
         .coordinator_flags = {"--lease", "1s", "--repair-delay", "500ms"}});
  const int runs = std::max(2, Runs(2) / 5);
  for (int run = 0; run < runs; ++run) {
    StreamLoad load(*cluster_, texts_, /*once=*/true);
    const int64_t moment = 50 + static_cast<int64_t>(random_.NextBelow(300));
    ASSERT_TRUE(Eventually(kPatience, [&] { return load.tokens() >= moment; }));
    const uint64_t before = admin_->Show().active_version();
    const int victim = static_cast<int>(random_.NextBelow(3));
    cluster_->expert(victim).Signal(SIGKILL);
    const std::vector<TimedStream>& streams = load.Stop();
    ASSERT_EQ(streams.size(), static_cast<size_t>(kClients));
    ExpectAllAsUndisturbed(streams);
    const auto show = admin_->Show();
    EXPECT_GT(show.active_version(), before);
    double longest = 0;
    for (const TimedStream& stream : streams)
      longest = std::max(longest, LongestPause(stream).count());
    std::cout
        << "[ figures  ] sole copies lost and placed again: longest pause "
        << longest << " ms\n";
    // The worker comes back empty and is given its share again.
    ASSERT_TRUE(cluster_->expert(victim).Wait(kPatience).has_value());
    cluster_->RestartExpert(victim);
    ASSERT_TRUE(admin_->Await([&](const admin::v1::ShowResponse& now) {
      int alive = 0;
      for (const auto& worker : now.workers())
        alive += worker.worker().alive() ? 1 : 0;
      return alive == 4;
    }));
    std::string why;
    const uint64_t version =
        admin_->Apply(ShufflePlacement(admin_->Export(), 1, random_), &why);
    ASSERT_GT(version, 0u) << why;
    ASSERT_TRUE(admin_->AwaitSettled(version));
    if (HasFailure()) return;
  }
}

TEST_F(PlacementUnderLoad, WithoutAReplicaAndRoomStreamsEndByNameAndNoneHangs) {
  // Room for its own third of the experts and not for half of them.
  Start({.experts = 3,
         .coordinator_flags = {"--lease", "1s", "--repair-delay", "500ms"},
         .trunk_flags = {"--unready-patience", "3s"},
         .expert_flags = {"--memory-limit", "5MiB"}});
  StreamLoad load(*cluster_, texts_, /*once=*/true);
  ASSERT_TRUE(Eventually(kPatience, [&] { return load.AllStreaming(); }));
  cluster_->expert(1).Signal(SIGKILL);
  const SteadyTime killed = std::chrono::steady_clock::now();
  const std::vector<TimedStream>& streams = load.Stop();
  EXPECT_LT(std::chrono::steady_clock::now() - killed,
            std::chrono::seconds(30));
  ASSERT_EQ(streams.size(), static_cast<size_t>(kClients));
  for (const TimedStream& stream : streams) {
    if (stream.status.ok()) continue;  // had ended before
    EXPECT_EQ(stream.status.error_code(), grpc::StatusCode::UNAVAILABLE);
    for (const char* part : {"layer ", "expert ", "'expert-1' (worker "})
      EXPECT_THAT(stream.status.error_message(), HasSubstr(part));
  }
  EXPECT_TRUE(std::any_of(streams.begin(), streams.end(),
                          [](const auto& s) { return !s.status.ok(); }));
  EXPECT_THAT(admin_->Show().blocked() + admin_->Show().waiting_for(),
              HasSubstr("expert"));
  // Back as it was once the worker is.
  ASSERT_TRUE(cluster_->expert(1).Wait(kPatience).has_value());
  cluster_->RestartExpert(1);
  ASSERT_TRUE(admin_->AwaitWhole());
  ASSERT_TRUE(Eventually(kPatience, [&] {
    return Stream(*cluster_->NewStub(), texts_[0].request).ids == texts_[0].ids;
  }));
}

TEST_F(PlacementUnderLoad, ATerminatedExpertWorkerLeavesWithoutAFailedRequest) {
  Start({.experts = 3});
  for (int victim = 0; victim < 2; ++victim) {
    StreamLoad load(*cluster_, texts_);
    ASSERT_TRUE(Eventually(kPatience, [&] { return load.AllStreaming(); }));
    cluster_->expert(victim).Signal(SIGTERM);
    const auto status = cluster_->expert(victim).Wait(kPatience);
    ASSERT_TRUE(status.has_value());
    EXPECT_TRUE(WIFEXITED(*status) && WEXITSTATUS(*status) == 0) << *status;
    const int64_t ended = load.streams_ended();
    ASSERT_TRUE(Eventually(
        kPatience, [&] { return load.streams_ended() > ended + kClients; }));
    ExpectAllAsUndisturbed(load.Stop());
    const auto show = admin_->Show();
    for (const auto& worker : show.workers()) {
      if (worker.worker().name() == "expert-" + std::to_string(victim)) {
        EXPECT_EQ(worker.copies(), 0u);
      }
    }
  }
}

TEST_F(PlacementUnderLoad, AStopIsBoundedByTheDrainTimeoutWhereNobodyHasRoom) {
  Start({.experts = 2,
         .trunk_flags = {"--unready-patience", "1s"},
         .expert_flags = {"--memory-limit", "9MiB", "--drain-timeout", "2s"}},
        40);
  StreamLoad load(*cluster_, texts_);
  ASSERT_TRUE(Eventually(kPatience, [&] { return load.AllStreaming(); }));
  const SteadyTime asked = std::chrono::steady_clock::now();
  cluster_->expert(0).Signal(SIGTERM);
  // It serves to the end of its time and is not waited for beyond.
  const auto status = cluster_->expert(0).Wait(kPatience);
  const auto took = std::chrono::steady_clock::now() - asked;
  ASSERT_TRUE(status.has_value());
  EXPECT_TRUE(WIFEXITED(*status)) << *status;
  EXPECT_GE(took, std::chrono::milliseconds(1500));
  EXPECT_LT(took, std::chrono::seconds(12));
}

}  // namespace
}  // namespace trunkline::testing
