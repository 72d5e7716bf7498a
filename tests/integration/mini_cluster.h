#pragma once

// A cluster's data plane in one process and without a coordinator: expert
// workers with their real stores, engines and transports, and an ExpertLink on
// the test's own thread. The test is the coordinator: it decides who lives,
// which placement is active, and when the view changes.
//
// Not thread-safe; the link's engine thread is the one that uses this.

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "control/cluster_view.h"
#include "expert_worker/expert_engine.h"
#include "expert_worker/expert_metrics.h"
#include "expert_worker/expert_store.h"
#include "expert_worker/placement_follower.h"
#include "kernels/kernel_context.h"
#include "model/checkpoint.h"
#include "placement/placement_map.h"
#include "transport/transport.h"
#include "trunk_worker/expert_link.h"

namespace trunkline::testing {

struct MiniClusterOptions {
  int workers = 2;
  int64_t replicas = 1;
  std::string transport = "inprocess";  // or "ucx"
  std::string answer = "auto";          // as ExpertOptions::answer
  int threads = 1;                      // of each worker
  transport::Options transport_options;
  trunk::ExpertLink::Options link;
};

class MiniCluster {
 public:
  // A worker that says what the test wants: called on its own thread for each
  // event of its transport.
  using Puppet = std::function<void(transport::Transport&, transport::Event&)>;

  // Starts all workers, loads placement version 1 on them and makes it active.
  // trunk: whose pool the link combines on, and whose class the workers compute
  // in. A fault ends the test program.
  MiniCluster(std::shared_ptr<const model::Checkpoint> checkpoint,
              const kernels::KernelContext& trunk,
              const MiniClusterOptions& options);
  ~MiniCluster();

  // Null once taken.
  trunk::ExpertLink* link() { return link_; }
  // For who wants to own it (an engine); link() stays usable while it lives.
  std::unique_ptr<trunk::ExpertLink> TakeLink() { return std::move(owned_); }
  // Polls the link until a step can start.
  absl::Status WaitReady(absl::Duration limit = absl::Seconds(20));

  // The worker's process is gone: engine, connections and shards.
  void Kill(int worker);
  // It is back under its old id at a new address and loads what the view wants;
  // the view says so once it is loaded.
  void Restart(int worker);
  // It is back, registered and reported ready as far as the view knows, but
  // serves no version.
  void RestartEmpty(int worker);
  void ReplaceByPuppet(int worker, Puppet puppet);

  // The next placement version: the same experts, owners moved on by `shift`
  // workers. Loaded by all who are alive; not active yet.
  PlacementVersion Stage(int64_t replicas, int shift);
  // Makes it the active one in the view that workers and link see.
  void Activate(PlacementVersion version);
  // Workers drop it; the link hears of that only with the next view.
  void RetireOnWorkers(PlacementVersion version);
  void PublishView();  // to workers and link
  // What the view says that work costs a worker; published with the next view.
  void SetCosts(int worker, const control::ExpertCosts& costs) {
    nodes_[worker]->costs = costs;
  }

  WorkerId id(int worker) const { return nodes_[worker]->id; }
  const std::string& name(int worker) const { return nodes_[worker]->name; }
  const control::ClusterView& view() const { return view_; }
  uint64_t cluster_id() const { return view_.cluster_id; }
  WorkerId trunk_id() const { return trunk_.worker; }
  expert::WorkerCounters counters(int worker) const {
    return nodes_[worker]->engine->counters();
  }

 private:
  struct Node {
    WorkerId id;
    std::string name;
    uint64_t incarnation = 0;
    bool alive = false;
    bool claims_ready = false;
    control::ExpertCosts costs;
    std::string address;
    std::shared_ptr<prometheus::Registry> registry;
    std::unique_ptr<expert::ExpertMetrics> metrics;
    std::unique_ptr<expert::PlacementFollower> follower;
    std::unique_ptr<expert::ExpertEngine> engine;
    std::unique_ptr<expert::ExpertStore> store;
    std::unique_ptr<transport::Transport> puppet_transport;
    std::atomic<bool> puppet_stop{false};
    std::thread puppet_thread;
  };

  std::unique_ptr<transport::Transport> Listen(Node& node);
  void StartNode(Node& node);
  void StopNode(Node& node);
  void Register(Node& node);
  void RefreshView();  // what nodes report now
  void TellNodes();
  void WaitLoaded(PlacementVersion version);
  placement::PlacementMap MakePlacement(int64_t replicas, int shift);

  const std::shared_ptr<const model::Checkpoint> checkpoint_;
  const MiniClusterOptions options_;
  const kernels::Numerics numerics_;  // the trunk's
  std::vector<placement::MoeLayerShape> shapes_;
  std::vector<expert::MoeLayer> layers_;
  control::ClusterView view_;
  control::Identity trunk_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::unique_ptr<trunk::ExpertLink> owned_;
  trunk::ExpertLink* link_ = nullptr;

  std::mutex mutex_;
  std::condition_variable reported_;
  uint64_t reports_ = 0;  // by mutex_
};

}  // namespace trunkline::testing
