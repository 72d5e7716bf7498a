#include "tests/integration/mini_cluster.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/clock.h"
#include "expert_worker/expert_options.h"
#include "transport/transport_factory.h"

namespace trunkline::testing {

namespace {

constexpr uint64_t kClusterId = 0x51c7e2a9;
constexpr std::chrono::seconds kLoadLimit{30};

kernels::Activation ActivationOf(const model::Checkpoint& checkpoint) {
  return checkpoint.activation_dtype() == DType::kBF16
             ? kernels::Activation::kBf16
             : kernels::Activation::kF32;
}

}  // namespace

MiniCluster::MiniCluster(std::shared_ptr<const model::Checkpoint> checkpoint,
                         const kernels::KernelContext& trunk,
                         const MiniClusterOptions& options)
    : checkpoint_(std::move(checkpoint)),
      options_(options),
      numerics_(trunk.numerics) {
  const model::ModelConfig& config = checkpoint_->config();
  for (const model::LayerSpec& spec : config.layers) {
    if (spec.kind != model::LayerKind::kMoe) continue;
    shapes_.push_back({spec.index, spec.moe.experts, 1});
    layers_.push_back(
        {spec.index, static_cast<uint32_t>(spec.moe.experts),
         static_cast<uint32_t>(spec.moe.expert_input(config.hidden_size))});
  }
  view_.cluster_id = kClusterId;
  view_.epoch = 1;
  trunk_.worker = WorkerId(1);
  trunk_.incarnation = 1;
  trunk_.epoch = 1;
  trunk_.cluster_id = kClusterId;
  for (int i = 0; i < options_.workers; ++i) {
    auto node = std::make_unique<Node>();
    // Ids with gaps and an order of their own, as after years of restarts.
    node->id = WorkerId(static_cast<uint32_t>(10 + 7 * i));
    node->name = absl::StrCat("ew-", i);
    nodes_.push_back(std::move(node));
    StartNode(*nodes_.back());
  }
  auto transport =
      transport::MakeTransport(options_.transport, options_.transport_options);
  TL_CHECK(transport.ok()) << transport.status();
  owned_ = std::make_unique<trunk::ExpertLink>(*std::move(transport), trunk,
                                               options_.link);
  link_ = owned_.get();
  Activate(Stage(options_.replicas, 0));
}

MiniCluster::~MiniCluster() {
  for (const std::unique_ptr<Node>& node : nodes_) StopNode(*node);
}

std::unique_ptr<transport::Transport> MiniCluster::Listen(Node& node) {
  auto transport =
      transport::MakeTransport(options_.transport, options_.transport_options);
  TL_CHECK(transport.ok()) << transport.status();
  auto address = (*transport)
                     ->Listen(options_.transport == "ucx" ? "127.0.0.1:0"
                                                          : "mini-cluster:0");
  TL_CHECK(address.ok()) << address.status();
  node.address = *address;
  node.alive = true;
  node.claims_ready = false;
  ++node.incarnation;
  return *std::move(transport);
}

void MiniCluster::StartNode(Node& node) {
  std::unique_ptr<transport::Transport> transport = Listen(node);
  node.registry = std::make_shared<prometheus::Registry>();
  node.metrics = std::make_unique<expert::ExpertMetrics>(*node.registry);
  expert::ExpertStore::Options store;
  store.threads.threads = options_.threads;
  store.numerics = numerics_;
  node.store = std::make_unique<expert::ExpertStore>(checkpoint_, store);
  expert::ExpertEngine::Options engine;
  engine.layers = layers_;
  engine.activation = ActivationOf(*checkpoint_);
  engine.answer = expert::ChooseAnswerForm(options_.answer, engine.activation);
  engine.threads.threads = options_.threads;
  node.engine = std::make_unique<expert::ExpertEngine>(
      engine, std::move(transport), node.metrics.get());
  node.follower = std::make_unique<expert::PlacementFollower>(
      node.store.get(), node.engine.get(), [this] {
        {
          std::lock_guard<std::mutex> lock(mutex_);
          ++reports_;
        }
        reported_.notify_all();
      });
}

void MiniCluster::StopNode(Node& node) {
  if (node.puppet_thread.joinable()) {
    node.puppet_stop = true;
    node.puppet_transport->Wake();
    node.puppet_thread.join();
    node.puppet_stop = false;
  }
  node.puppet_transport.reset();
  node.store.reset();
  node.engine.reset();
  node.follower.reset();
  node.metrics.reset();
  node.alive = false;
}

void MiniCluster::Register(Node& node) {
  control::Identity identity = trunk_;
  identity.worker = node.id;
  identity.incarnation = node.incarnation;
  node.follower->OnRegistered(identity);
}

void MiniCluster::Kill(int worker) { StopNode(*nodes_[worker]); }

void MiniCluster::Restart(int worker) {
  Node& node = *nodes_[worker];
  StopNode(node);
  StartNode(node);
  Register(node);
  RefreshView();
  node.follower->OnView(view_);
  WaitLoaded(view_.active);
  PublishView();
}

void MiniCluster::RestartEmpty(int worker) {
  Node& node = *nodes_[worker];
  StopNode(node);
  StartNode(node);
  Register(node);
  node.claims_ready = true;
  RefreshView();
  link_->UpdateView(view_, trunk_);
}

void MiniCluster::ReplaceByPuppet(int worker, Puppet puppet) {
  Node& node = *nodes_[worker];
  StopNode(node);
  node.puppet_transport = Listen(node);
  node.claims_ready = true;
  node.puppet_thread = std::thread(
      [&node, puppet = std::move(puppet), raw = node.puppet_transport.get()] {
        std::vector<transport::Event> events;
        while (!node.puppet_stop) {
          events.clear();
          raw->Poll(absl::Milliseconds(100), &events);
          for (transport::Event& event : events) puppet(*raw, event);
        }
      });
  PublishView();
}

placement::PlacementMap MiniCluster::MakePlacement(int64_t replicas,
                                                   int shift) {
  std::vector<WorkerId> workers;
  for (const std::unique_ptr<Node>& node : nodes_) workers.push_back(node->id);
  const PlacementVersion version(
      view_.placements.empty() ? 1
                               : view_.placements.back().map.version.value + 1);
  auto map = placement::InitialPlacement(version, shapes_, workers, replicas);
  TL_CHECK(map.ok()) << map.status();
  const size_t count = workers.size();
  for (placement::LayerPlacement& layer : map->layers) {
    for (std::vector<placement::Replica>& owners : layer.replicas) {
      for (placement::Replica& replica : owners) {
        const size_t at =
            std::find(workers.begin(), workers.end(), replica.worker) -
            workers.begin();
        replica.worker = workers[(at + shift) % count];
      }
      std::sort(owners.begin(), owners.end());
    }
  }
  return *std::move(map);
}

PlacementVersion MiniCluster::Stage(int64_t replicas, int shift) {
  control::PlacementView placement;
  placement.map = MakePlacement(replicas, shift);
  placement.state = control::PlacementState::kStaging;
  const PlacementVersion version = placement.map.version;
  view_.placements.push_back(std::move(placement));
  RefreshView();
  for (const std::unique_ptr<Node>& node : nodes_) {
    if (node->follower == nullptr) continue;
    Register(*node);
    node->follower->OnView(view_);
  }
  WaitLoaded(version);
  return version;
}

void MiniCluster::WaitLoaded(PlacementVersion version) {
  const auto loaded = [&] {
    const control::PlacementView* placement = view_.FindPlacement(version);
    if (placement == nullptr) return true;
    const std::vector<WorkerId> owners = placement->map.Workers();
    for (const std::unique_ptr<Node>& node : nodes_) {
      if (node->follower == nullptr ||
          !std::binary_search(owners.begin(), owners.end(), node->id))
        continue;
      bool ready = false;
      for (const control::VersionReport& report : node->follower->Reports()) {
        TL_CHECK(report.state != control::ShardState::kFailed) << report.error;
        ready = ready || (report.version == version &&
                          report.state == control::ShardState::kReady);
      }
      if (!ready) return false;
    }
    return true;
  };
  const auto end = std::chrono::steady_clock::now() + kLoadLimit;
  while (true) {
    uint64_t seen;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      seen = reports_;
    }
    if (loaded()) return;
    std::unique_lock<std::mutex> lock(mutex_);
    TL_CHECK(reported_.wait_until(lock, end, [&] { return reports_ != seen; }))
        << "version " << version << " was not loaded in time";
  }
}

void MiniCluster::Activate(PlacementVersion version) {
  for (control::PlacementView& placement : view_.placements) {
    if (placement.map.version == version)
      placement.state = control::PlacementState::kActive;
    else if (placement.state == control::PlacementState::kActive)
      placement.state = control::PlacementState::kDraining;
  }
  view_.active = version;
  PublishView();
}

void MiniCluster::RetireOnWorkers(PlacementVersion version) {
  for (control::PlacementView& placement : view_.placements) {
    if (placement.map.version == version)
      placement.state = control::PlacementState::kRetired;
  }
  TellNodes();
  for (const std::unique_ptr<Node>& node : nodes_) {
    if (node->engine != nullptr)
      TL_CHECK(node->engine->WaitIdle(absl::Seconds(10)));
  }
}

void MiniCluster::RefreshView() {
  ++view_.revision;
  view_.workers.clear();
  for (const std::unique_ptr<Node>& node : nodes_) {
    control::WorkerView worker;
    worker.id = node->id;
    worker.name = node->name;
    worker.role = control::Role::kExpert;
    worker.incarnation = node->incarnation;
    worker.alive = node->alive;
    worker.data_address = node->address;
    worker.costs = node->costs;
    if (node->claims_ready) {
      for (const control::PlacementView& placement : view_.placements) {
        control::VersionReport report;
        report.version = placement.map.version;
        report.state = control::ShardState::kReady;
        worker.versions.push_back(report);
      }
    } else if (node->follower != nullptr) {
      worker.versions = node->follower->Reports();
    }
    view_.workers.push_back(std::move(worker));
  }
}

void MiniCluster::TellNodes() {
  RefreshView();
  for (const std::unique_ptr<Node>& node : nodes_) {
    if (node->follower != nullptr && !node->claims_ready)
      node->follower->OnView(view_);
  }
}

void MiniCluster::PublishView() {
  TellNodes();
  link_->UpdateView(view_, trunk_);
}

absl::Status MiniCluster::WaitReady(absl::Duration limit) {
  const Clock& clock = Clock::Monotonic();
  const absl::Time deadline = clock.Now() + limit;
  while (true) {
    absl::Status ready = link_->Ready();
    if (ready.ok() || clock.Now() >= deadline) return ready;
    link_->Poll(absl::Milliseconds(20));
  }
}

}  // namespace trunkline::testing
