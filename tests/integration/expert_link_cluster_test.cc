// The whole data and control plane but the trunk's layers: a coordinator, real
// expert servers and an ExpertLink that follows the coordinator's view, over
// gRPC and UCX.

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/metric_registry.h"
#include "control/coordinator_client.h"
#include "coordinator/coordinator_server.h"
#include "expert_worker/expert_server.h"
#include "tests/integration/eventually.h"
#include "tests/integration/idle_use.h"
#include "tests/integration/random_moe_call.h"
#include "tests/model/checkpoint_builder.h"
#include "transport/transport_factory.h"
#include "trunk_worker/expert_link.h"
#include "trunk_worker/local_experts.h"

namespace trunkline::testing {
namespace {

using coordinator::CoordinatorOptions;
using coordinator::CoordinatorServer;
using expert::ExpertOptions;
using expert::ExpertServer;

constexpr std::chrono::milliseconds kSoon{30000};

// The trunk's half of the control plane around a link.
class TrunkSide {
 public:
  TrunkSide(const std::string& coordinator, const model::Checkpoint& checkpoint,
            const kernels::KernelContext& context)
      : link_(transport::MakeTransport("ucx", {}).value(), context, {}) {
    control::Registration registration;
    registration.name = "trunk";
    registration.role = control::Role::kTrunk;
    registration.model_digest = checkpoint.digest();
    registration.numerics_class = kernels::NumericsName(context.numerics);
    registration.self_check_digest = kernels::SelfCheckDigest(context);
    for (const LayerIndex layer : checkpoint.config().MoeLayers()) {
      placement::MoeLayerShape shape;
      shape.layer = layer;
      shape.experts = checkpoint.config().layers[layer.value].moe.experts;
      for (const model::TensorInfo& tensor : checkpoint.tensors()) {
        if (tensor.layer == layer && tensor.expert == ExpertId(0))
          shape.expert_bytes += tensor.bytes;
      }
      registration.moe_layers.push_back(shape);
    }
    control::CoordinatorClient::Callbacks callbacks;
    callbacks.on_registered = [this](const control::Identity& identity) {
      std::lock_guard<std::mutex> lock(mutex_);
      identity_ = identity;
    };
    callbacks.on_view = [this](const control::ClusterView& view) {
      std::lock_guard<std::mutex> lock(mutex_);
      link_.UpdateView(view, identity_);
    };
    callbacks.make_report = [this] {
      control::Report report;
      report.oldest_in_flight = link_.oldest_in_flight();
      report.loads = link_.TakeLoads();
      return report;
    };
    client_ = control::CoordinatorClient::Start(
        coordinator, std::move(registration), std::move(callbacks));
  }
  ~TrunkSide() { client_->Stop(); }

  trunk::ExpertLink& link() { return link_; }
  bool AwaitReady() {
    return Eventually(kSoon, [this] {
      link_.Poll(absl::Milliseconds(10));
      return link_.Ready().ok();
    });
  }

 private:
  trunk::ExpertLink link_;
  std::mutex mutex_;
  control::Identity identity_;
  std::unique_ptr<control::CoordinatorClient> client_;
};

class ExpertClusterTest : public ::testing::Test {
 protected:
  ExpertClusterTest() {
    model::SmallModel small;
    small.pattern = "EME";
    model::SynthesisSpec spec;
    spec.config = model::SmallConfig(small);
    path_ = model::BuildCheckpoint(spec, directory_);
    checkpoint_ = model::Checkpoint::Open(path_).value();
    call_ = std::make_unique<RandomMoeCall>(*checkpoint_, LayerIndex(2), 16, 1);
    auto local = trunk::LocalExperts::Load(*checkpoint_, context_).value();
    EXPECT_TRUE(RunOnce(*local, StepId(0), *call_).ok());
    expected_ = call_->Bits();
  }

  void StartCoordinator(const std::string& listen) {
    CoordinatorOptions options;
    options.listen = listen;
    options.state_file = directory_.path() + "/state.db";
    options.expert_workers = 2;
    auto started = CoordinatorServer::Start(options);
    ASSERT_TRUE(started.ok()) << started.status();
    coordinator_ = *std::move(started);
  }
  ExpertOptions Options(const std::string& name) {
    ExpertOptions options;
    options.model_dir = path_;
    options.coordinator = coordinator_->address();
    options.name = name;
    options.threads = 1;
    options.log_level = "warn";
    // Whoever stops is gone at once, unless a test is about the handover.
    options.handover_timeout = absl::ZeroDuration();
    return options;
  }
  std::unique_ptr<ExpertServer> StartExpert(const std::string& name) {
    auto started = ExpertServer::Start(Options(name));
    EXPECT_TRUE(started.ok()) << started.status();
    return *std::move(started);
  }
  // A step can fail while a loss is being noticed; it must not be wrong.
  bool RunsRight(trunk::ExpertLink& link) {
    const absl::Status status = RunOnce(link, StepId(++step_), *call_);
    if (!status.ok()) return false;
    EXPECT_EQ(call_->Bits(), expected_);
    return true;
  }

  ThreadPool pool_{ThreadPool::Options{}};
  kernels::KernelContext context_{&pool_};
  model::TempDirectory directory_;
  std::string path_;
  std::shared_ptr<const model::Checkpoint> checkpoint_;
  std::unique_ptr<RandomMoeCall> call_;
  std::vector<uint32_t> expected_;
  std::unique_ptr<CoordinatorServer> coordinator_;
  uint64_t step_ = 0;
};

TEST_F(ExpertClusterTest, ServersLoadWhatIsPlacedAndOutliveTheCoordinator) {
  StartCoordinator("127.0.0.1:0");
  const std::string address = coordinator_->address();
  auto a = StartExpert("a");
  auto b = StartExpert("b");
  TrunkSide trunk(address, *checkpoint_, context_);
  ASSERT_TRUE(trunk.AwaitReady()) << trunk.link().Ready();
  ASSERT_TRUE(RunsRight(trunk.link()));

  // Without a coordinator nothing changes on the data path.
  coordinator_->Shutdown(absl::ZeroDuration());
  coordinator_ = nullptr;
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(RunsRight(trunk.link())) << i;
  StartCoordinator(address);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(RunsRight(trunk.link())) << i;

  // A worker that comes back under its name gets its experts back.
  ASSERT_TRUE(b->Shutdown(absl::Seconds(5)).ok());
  b = nullptr;
  EXPECT_TRUE(Eventually(kSoon, [&] {
    trunk.link().Poll(absl::Milliseconds(10));
    return !trunk.link().Ready().ok();
  }));
  b = StartExpert("b");
  EXPECT_TRUE(Eventually(kSoon, [&] {
    trunk.link().Poll(absl::Milliseconds(10));
    return RunsRight(trunk.link());
  })) << trunk.link().Ready();
}

TEST_F(ExpertClusterTest, AnIdleClusterNeitherSpinsNorPolls) {
  StartCoordinator("127.0.0.1:0");
  auto a = StartExpert("a");
  auto b = StartExpert("b");
  TrunkSide trunk(coordinator_->address(), *checkpoint_, context_);
  ASSERT_TRUE(trunk.AwaitReady()) << trunk.link().Ready();
  ASSERT_TRUE(RunsRight(trunk.link()));
  // Everything of the cluster is in this process: two experts, the trunk's
  // transport and client, the coordinator.
  const IdleUse use = MeasureIdleUse(
      std::chrono::seconds(2),
      [&](auto interval) { trunk.link().Poll(absl::FromChrono(interval)); });
  EXPECT_LT(use.cores, 0.25);
  EXPECT_LT(use.wake_ups_per_second, 1000);
}

TEST_F(ExpertClusterTest, WhatKeepsAServerFromStartingIsNamed) {
  StartCoordinator("127.0.0.1:0");
  ExpertOptions options = Options("a");
  options.model_dir = directory_.path() + "/nowhere";
  absl::Status status = ExpertServer::Start(options).status();
  EXPECT_FALSE(status.ok());
  EXPECT_NE(std::string(status.message()).find("nowhere"), std::string::npos)
      << status;

  options = Options("a");
  options.model_dir =
      std::string(TRUNKLINE_FIXTURES) + "/checkpoints/tiny-dense";
  status = ExpertServer::Start(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_NE(std::string(status.message()).find("no routed experts"),
            std::string::npos)
      << status;

  options = Options("a");
  options.simd = "mmx";
  status = ExpertServer::Start(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;

  options = Options("a");
  options.metrics_listen = "127.0.0.1:0";
  auto first = ExpertServer::Start(options).value();
  options = Options("b");
  options.listen = first->data_address().substr(std::string("ucx://").size());
  status = ExpertServer::Start(options).status();
  EXPECT_FALSE(status.ok()) << "two servers on one port";
  options = Options("b");
  options.metrics_listen = first->metrics_address();
  EXPECT_FALSE(ExpertServer::Start(options).ok())
      << "two endpoints on one port";
}

// A worker of another checkpoint is told so, and its process can end.
TEST_F(ExpertClusterTest, AWorkerOfAnotherModelIsRefused) {
  StartCoordinator("127.0.0.1:0");
  auto a = StartExpert("a");
  model::SmallModel small;
  small.pattern = "EME";
  small.moe.experts = 8;
  model::SynthesisSpec spec;
  spec.config = model::SmallConfig(small);
  ExpertOptions options = Options("b");
  options.model_dir = model::BuildCheckpoint(spec, directory_, "other");
  // The first to register decides what the cluster serves.
  ASSERT_TRUE(Eventually(kSoon, [&] {
    const auto view =
        control::FetchCluster(coordinator_->address(), absl::Seconds(5));
    return view.ok() && !view->workers.empty();
  }));
  std::mutex mutex;
  absl::Status refused;
  options.on_refused = [&](const absl::Status& status) {
    std::lock_guard<std::mutex> lock(mutex);
    refused = status;
  };
  auto b = ExpertServer::Start(options);
  ASSERT_TRUE(b.ok()) << b.status();
  EXPECT_TRUE(Eventually(kSoon, [&] {
    std::lock_guard<std::mutex> lock(mutex);
    return !refused.ok();
  }));
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_TRUE((*b)->Shutdown(absl::Seconds(5)).ok());
}

// Experts are handed over before the worker leaves: no step ever fails.
TEST_F(ExpertClusterTest, AHandoverMovesExpertsWithoutAFailedStep) {
  StartCoordinator("127.0.0.1:0");
  auto a = StartExpert("a");
  ExpertOptions options = Options("b");
  options.handover_timeout = absl::Seconds(20);
  auto b = ExpertServer::Start(options);
  ASSERT_TRUE(b.ok()) << b.status();
  TrunkSide trunk(coordinator_->address(), *checkpoint_, context_);
  ASSERT_TRUE(trunk.AwaitReady()) << trunk.link().Ready();
  std::atomic<bool> left{false};
  std::thread leaving([&] {
    EXPECT_TRUE((*b)->Shutdown(absl::Seconds(25)).ok());
    b->reset();
    left = true;
  });
  int steps = 0;
  while (!left) {
    EXPECT_TRUE(RunsRight(trunk.link())) << "step " << ++steps;
    trunk.link().Poll(absl::Milliseconds(2));
  }
  leaving.join();
  EXPECT_TRUE(RunsRight(trunk.link()));
}

}  // namespace
}  // namespace trunkline::testing
