// The exchange when things break: workers that die, hang, lie, refuse or come
// back, and views that lag. Either the same bits or a typed error that names
// worker, layer and expert.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/integration/eventually.h"
#include "tests/integration/mini_cluster.h"
#include "tests/integration/puppet_answers.h"
#include "tests/integration/random_moe_call.h"
#include "tests/model/checkpoint_builder.h"
#include "transport/transport_factory.h"
#include "trunk_worker/local_experts.h"

namespace trunkline::testing {
namespace {

using dispatch::RefusalCode;
using transport::Event;
using transport::Transport;

constexpr std::chrono::milliseconds kSoon{10000};

const std::shared_ptr<const model::Checkpoint>& TestCheckpoint() {
  static model::TempDirectory directory;
  static const std::shared_ptr<const model::Checkpoint> checkpoint = [] {
    model::SmallModel small;
    small.pattern = "ME";
    model::SynthesisSpec spec;
    spec.config = model::SmallConfig(small);
    spec.dtype = DType::kBF16;
    spec.seed = 5;
    auto opened =
        model::Checkpoint::Open(model::BuildCheckpoint(spec, directory));
    EXPECT_TRUE(opened.ok()) << opened.status();
    return *std::move(opened);
  }();
  return checkpoint;
}

class ExpertLinkFaultsTest : public ::testing::TestWithParam<std::string> {
 protected:
  ExpertLinkFaultsTest() : call_(*TestCheckpoint(), LayerIndex(1), 24, 9) {
    auto local = trunk::LocalExperts::Load(*TestCheckpoint(), context_);
    EXPECT_TRUE(local.ok()) << local.status();
    EXPECT_TRUE(RunOnce(**local, StepId(0), call_).ok());
    expected_ = call_.Bits();
  }

  void StartCluster(int workers, int64_t replicas) {
    options_.workers = workers;
    options_.replicas = replicas;
    options_.transport = GetParam();
    cluster_ =
        std::make_unique<MiniCluster>(TestCheckpoint(), context_, options_);
    WaitConnections(workers);
    const absl::Status ready = link().Ready();
    ASSERT_TRUE(ready.ok()) << ready;
  }
  // With replicas the link is ready before all are connected; these tests are
  // about all of them.
  void WaitConnections(uint64_t count) {
    ASSERT_TRUE(Eventually(kSoon, [&] {
      link().Poll(absl::Milliseconds(5));
      return link().stats().connections_up >= count;
    }));
  }
  // A puppet in a worker's place, connected.
  void Puppet(int worker, MiniCluster::Puppet puppet) {
    const uint64_t before = link().stats().connections_up;
    cluster_->ReplaceByPuppet(worker, std::move(puppet));
    WaitConnections(before + 1);
    const absl::Status ready = link().Ready();
    ASSERT_TRUE(ready.ok()) << ready;
  }
  void WaitReady() {
    const absl::Status ready = cluster_->WaitReady();
    ASSERT_TRUE(ready.ok()) << ready;
  }
  trunk::ExpertLink& link() { return *cluster_->link(); }

  absl::Status Begin(StepId step) {
    call_.SetStep(step);
    call_.Reset();
    absl::StatusOr<PlacementVersion> version = link().BeginStep(step);
    if (!version.ok()) return version.status();
    return link().Begin(call_.call());
  }
  absl::Status Finish(StepId step) {
    absl::Status status = link().Finish(call_.call());
    link().EndStep(step);
    return status;
  }
  void ExpectRuns(StepId step) {
    const absl::Status status = RunOnce(link(), step, call_);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(call_.Bits(), expected_);
  }
  static void ExpectNames(const absl::Status& status,
                          std::initializer_list<const char*> parts) {
    for (const char* part : parts)
      EXPECT_NE(std::string(status.message()).find(part), std::string::npos)
          << part << " in " << status;
  }

  // The worker says nothing to any frame, and counts them.
  MiniCluster::Puppet Silent() {
    return [this](Transport&, Event& event) {
      if (event.kind == Event::Kind::kReceived) held_.Add(event);
    };
  }

  ThreadPool pool_{ThreadPool::Options{}};
  kernels::KernelContext context_{&pool_};
  RandomMoeCall call_;
  std::vector<uint32_t> expected_;
  MiniClusterOptions options_;
  HeldFrames held_;  // outlives the puppets
  std::unique_ptr<MiniCluster> cluster_;
};

TEST_P(ExpertLinkFaultsTest, AWorkerKilledInsideALayerIsReplacedByReplicas) {
  StartCluster(3, 2);
  Puppet(1, Silent());
  ASSERT_TRUE(Begin(StepId(1)).ok());
  ASSERT_TRUE(Eventually(kSoon, [&] { return held_.count() > 0; }));
  cluster_->Kill(1);
  const absl::Status status = Finish(StepId(1));
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(call_.Bits(), expected_);
  EXPECT_GT(link().stats().routes.routes_retried, 0u);
  EXPECT_EQ(link().stats().routes.workers_failed, 1u);
  // And so for the next one, without the dead worker.
  ExpectRuns(StepId(2));
}

TEST_P(ExpertLinkFaultsTest, WithoutReplicasTheStepEndsByNameAndHealsLater) {
  StartCluster(2, 1);
  ExpectRuns(StepId(1));
  Puppet(1, Silent());
  ASSERT_TRUE(Begin(StepId(2)).ok());
  ASSERT_TRUE(Eventually(kSoon, [&] { return held_.count() > 0; }));
  cluster_->Kill(1);
  const absl::Status status = Finish(StepId(2));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  ExpectNames(status, {"'ew-1'", "worker 17", "layer 1", "expert "});
  EXPECT_EQ(link().stats().calls_failed, 1u);
  // Not ready while it is away, and it says why.
  const absl::Status away = link().Ready();
  EXPECT_EQ(away.code(), absl::StatusCode::kUnavailable);
  ExpectNames(away, {"'ew-1'", "layer 1", "expert "});

  cluster_->Restart(1);
  WaitReady();
  ExpectRuns(StepId(3));
}

TEST_P(ExpertLinkFaultsTest, AWorkerThatHangsIsGivenUpAfterItsDeadline) {
  // Long enough for a healthy worker on a machine that is busy with other
  // tests.
  options_.link.limits.worker_deadline = absl::Milliseconds(1500);
  for (const int64_t replicas : {2, 1}) {
    StartCluster(2, replicas);
    // Connected, its heart beats, it never answers.
    Puppet(0, Silent());
    const absl::Status status = RunOnce(link(), StepId(1), call_);
    if (replicas == 2) {
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_EQ(call_.Bits(), expected_);
    } else {
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
      ExpectNames(status, {"'ew-0'", "no answer within 1.5s", "layer 1"});
    }
    cluster_ = nullptr;
  }
}

TEST_P(ExpertLinkFaultsTest, AStepHasADeadlineOfItsOwn) {
  options_.link.limits.step_deadline = absl::Milliseconds(150);
  StartCluster(2, 1);
  Puppet(0, Silent());
  const absl::Status status = RunOnce(link(), StepId(1), call_);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  ExpectNames(status, {"'ew-0'", "worker 10", "layer 1"});
}

TEST_P(ExpertLinkFaultsTest, EveryRefusalMovesTheRoutesToAReplica) {
  for (int code = 1; code <= static_cast<int>(RefusalCode::kInternal); ++code) {
    SCOPED_TRACE(code);
    StartCluster(2, 2);
    Puppet(0, [&](Transport& transport, Event& event) {
      if (event.kind != Event::Kind::kReceived) return;
      transport.Send(event.connection,
                     RefusalOf(transport, event.message,
                               static_cast<RefusalCode>(code), "because"),
                     0);
    });
    ExpectRuns(StepId(1));
    EXPECT_TRUE(link().stats().routes.workers_failed +
                    link().stats().routes.refusals >
                0);
    cluster_ = nullptr;
  }
}

TEST_P(ExpertLinkFaultsTest, AnswersThatCanNotBeAreNeverUsed) {
  struct Lie {
    const char* name;
    std::function<void(PuppetAnswer&)> edit;
  };
  const std::vector<Lie> lies = {
      {"another cluster", [](auto& a) { ++a.header.cluster_id; }},
      {"another trunk", [](auto& a) { ++a.header.trunk_rank; }},
      {"another worker", [](auto& a) { ++a.header.worker_rank; }},
      {"a step to come", [](auto& a) { a.header.step_id += 1000; }},
      {"an attempt never made", [](auto& a) { a.header.attempt = 7; }},
      {"another version", [](auto& a) { ++a.header.placement_version; }},
      {"another expert", [](auto& a) { a.expert_id[0] ^= 1; }},
      {"a token not asked for", [](auto& a) { a.token_id[0] += 100; }},
      {"too few routes",
       [](auto& a) {
         a.token_id.pop_back();
         a.slot.pop_back();
         a.expert_id.pop_back();
       }},
      {"narrow rows", [](auto& a) { a.header.row_width /= 2; }},
      {"rounded rows", [](auto& a) { a.header.row_dtype = DType::kF16; }},
  };
  for (const Lie& lie : lies) {
    SCOPED_TRACE(lie.name);
    StartCluster(2, 2);
    Puppet(1, [&](Transport& transport, Event& event) {
      if (event.kind != Event::Kind::kReceived) return;
      transport.Send(event.connection,
                     ZeroAnswer(transport, event.message, lie.edit), 0);
    });
    ExpectRuns(StepId(1));
    EXPECT_TRUE(link().stats().workers_lied > 0);
    cluster_ = nullptr;
  }
}

TEST_P(ExpertLinkFaultsTest, RubbishFromAWorkerEndsItsConnectionOnly) {
  StartCluster(2, 2);
  Puppet(0, [](Transport& transport, Event& event) {
    if (event.kind != Event::Kind::kReceived) return;
    transport::Message rubbish = transport.Allocate(777);
    std::memset(rubbish.data(), 0x5a, rubbish.size);
    transport.Send(event.connection, std::move(rubbish), 0);
  });
  ExpectRuns(StepId(1));
  EXPECT_TRUE(link().stats().workers_lied > 0);
}

// It refuses and then answers after all: the routes have gone elsewhere.
TEST_P(ExpertLinkFaultsTest, AnAnswerThatComesTooLateIsDroppedAndCounted) {
  StartCluster(2, 2);
  Puppet(0, [](Transport& transport, Event& event) {
    if (event.kind != Event::Kind::kReceived) return;
    transport.Send(event.connection,
                   RefusalOf(transport, event.message, RefusalCode::kOverloaded,
                             "too much"),
                   0);
    transport.Send(event.connection,
                   ZeroAnswer(transport, event.message, [](auto&) {}), 0);
  });
  ExpectRuns(StepId(1));
  EXPECT_TRUE(Eventually(kSoon, [&] {
    link().Poll(absl::Milliseconds(5));
    return link().stats().late_answers > 0;
  }));
  EXPECT_EQ(link().stats().workers_lied, 0u);
}

// The workers have moved on to version 2 while the link's view says 1. The
// newer view is there before the refusal in one case and comes while the layer
// waits in the other.
TEST_P(ExpertLinkFaultsTest, AStaleVersionIsRefusedAndPlannedAnew) {
  for (const bool view_comes_first : {true, false}) {
    SCOPED_TRACE(view_comes_first);
    StartCluster(3, 1);
    ExpectRuns(StepId(1));
    const PlacementVersion next = cluster_->Stage(1, 1);
    cluster_->RetireOnWorkers(PlacementVersion(1));
    control::ClusterView view = cluster_->view();
    view.active = next;
    control::Identity identity;
    identity.worker = cluster_->trunk_id();
    identity.cluster_id = cluster_->cluster_id();

    ASSERT_TRUE(Begin(StepId(2)).ok());
    if (view_comes_first) link().UpdateView(view, identity);
    std::thread coordinator([&] {
      if (view_comes_first) return;
      EXPECT_TRUE(Eventually(kSoon, [&] {
        for (int i = 0; i < 3; ++i) {
          if (cluster_->counters(i).frames_refused == 0) return false;
        }
        return true;
      }));
      link().UpdateView(view, identity);
    });
    const absl::Status status = link().Finish(call_.call());
    coordinator.join();
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(call_.Bits(), expected_);
    EXPECT_EQ(link().stats().placements_replaced, 1u);
    EXPECT_EQ(link().oldest_in_flight(), next) << "the step moved on";
    // The next layer of the same step goes straight to the new version.
    const uint64_t refused = cluster_->counters(0).frames_refused;
    ASSERT_TRUE(link().Begin(call_.call()).ok());
    ASSERT_TRUE(Finish(StepId(2)).ok());
    EXPECT_EQ(call_.Bits(), expected_);
    EXPECT_EQ(cluster_->counters(0).frames_refused, refused);
    cluster_ = nullptr;
  }
}

// A worker that came back empty refuses a version that is still the newest.
TEST_P(ExpertLinkFaultsTest, AnEmptyWorkerIsPassedOverOrNamed) {
  options_.link.newer_view_wait = absl::Milliseconds(150);
  for (const int64_t replicas : {2, 1}) {
    SCOPED_TRACE(replicas);
    StartCluster(2, replicas);
    cluster_->RestartEmpty(1);
    WaitConnections(3);
    if (replicas == 2) {
      ExpectRuns(StepId(1));
      // The worker counts after it has answered.
      EXPECT_TRUE(Eventually(
          kSoon, [&] { return cluster_->counters(1).frames_refused > 0; }));
    } else {
      const absl::Status status = RunOnce(link(), StepId(1), call_);
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
      ExpectNames(status, {"'ew-1'", "worker 17", "layer 1", "expert ",
                           "version 1", "150ms"});
    }
    cluster_ = nullptr;
  }
}

// Two owners vanish from the view in the same moment, while both owe answers.
TEST_P(ExpertLinkFaultsTest, SeveralWorkersLostAtOnceLeaveTheLastOne) {
  StartCluster(3, 3);
  Puppet(0, Silent());
  Puppet(1, Silent());
  ASSERT_TRUE(Begin(StepId(1)).ok());
  ASSERT_TRUE(Eventually(kSoon, [&] { return held_.count() == 2; }));
  control::ClusterView view = cluster_->view();
  view.workers.erase(view.workers.begin(), view.workers.begin() + 2);
  control::Identity identity;
  identity.worker = cluster_->trunk_id();
  identity.cluster_id = cluster_->cluster_id();
  link().UpdateView(view, identity);
  const absl::Status status = Finish(StepId(1));
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(call_.Bits(), expected_);
}

// Strangers and broken clients do not disturb a worker.
TEST_P(ExpertLinkFaultsTest, AWorkerSurvivesWhateverAStrangerSends) {
  StartCluster(1, 1);
  auto stranger =
      transport::MakeTransport(GetParam(), transport::Options()).value();
  const auto connection =
      stranger->Connect(cluster_->view().workers[0].data_address).value();
  constexpr int kMessages = 50;
  RandomStream random(3);
  for (int i = 0; i < kMessages; ++i) {
    transport::Message message = stranger->Allocate(1 + random.NextBelow(5000));
    for (size_t b = 0; b < message.size; ++b)
      message.data()[b] = static_cast<std::byte>(random.Next());
    stranger->Send(connection, std::move(message), i);
  }
  // Each of them is answered by a refusal.
  int refusals = 0;
  std::vector<Event> events;
  EXPECT_TRUE(Eventually(kSoon, [&] {
    events.clear();
    stranger->Poll(absl::Milliseconds(20), &events);
    for (Event& event : events) {
      if (event.kind != Event::Kind::kReceived) continue;
      const auto refusal =
          dispatch::DecodeRefusal({event.message.data(), event.message.size});
      EXPECT_TRUE(refusal.ok()) << refusal.status();
      EXPECT_EQ(refusal->header.refusal, RefusalCode::kMalformed);
      ++refusals;
    }
    return refusals == kMessages;
  })) << refusals;
  ExpectRuns(StepId(1));
  EXPECT_EQ(cluster_->counters(0).frames_refused,
            static_cast<uint64_t>(kMessages));
}

INSTANTIATE_TEST_SUITE_P(Transports, ExpertLinkFaultsTest,
                         ::testing::Values("inprocess", "ucx"),
                         [](const auto& p) { return p.param; });

}  // namespace
}  // namespace trunkline::testing
