#pragma once

// An expert worker process: the production data path, placement follower and
// control session over simulated wires, with shards that are loaded in
// simulated time from a simulated disk.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "expert_worker/expert_data_path.h"
#include "expert_worker/expert_engine.h"
#include "expert_worker/placement_follower.h"
#include "sim/sim_control.h"
#include "sim/sim_model.h"
#include "sim/sim_peer_loader.h"
#include "sim/sim_transport.h"
#include "sim/world.h"

namespace trunkline::sim {

// What of a machine outlives its processes, and what is wrong with it.
struct ExpertMachine {
  std::string name;
  Place place = 0;
  uint64_t memory_bytes = 0;  // 0: not limited
  double speed = 1;
  std::string failure_domain;
  absl::Duration load_time = absl::Milliseconds(2);  // of one expert
  absl::Duration batch_time_most = absl::Microseconds(300);
  bool disk_broken = false;   // loads fail
  bool loads_wrong = false;   // and nobody notices: some expert is another
  bool sends_rotten = false;  // weights rot before their checksum is made
  uint64_t memory_taken = 0;  // by somebody else
  // Takes experts from peers that have them, and reads its disk only for what
  // nobody gives.
  bool asks_peers = false;
  uint64_t from_peers = 0, not_from_peers = 0;  // experts asked for
};

// Loads in simulated time. Callbacks never come from inside a call.
class SimShards final : public expert::ShardSource {
 public:
  SimShards(World* world, SimModel* model, ExpertMachine* machine,
            SimPeerLoader* peers,
            std::function<void(std::function<void()>)> run)
      : world_(world),
        model_(model),
        machine_(machine),
        peers_(peers),
        run_(std::move(run)) {}
  ~SimShards() override { *alive_ = false; }

  void Stage(PlacementVersion version, std::vector<expert::ExpertKey> experts,
             OnProgress on_progress) override;
  void Retire(PlacementVersion version) override;
  std::vector<expert::StageProgress> Versions() const override;

 private:
  struct Staged {
    std::vector<expert::ExpertKey> experts;
    std::vector<std::shared_ptr<const kernels::MlpWeights>> loaded;
    OnProgress on_progress;
    expert::StageProgress progress;
  };
  std::set<expert::ExpertKey> Held() const;
  void LoadNext(PlacementVersion version, uint64_t generation, size_t loaded);
  void LoadFromDisk(PlacementVersion version, uint64_t generation);
  void TakeFromPeer(PlacementVersion version, uint64_t generation);
  // One more expert of the version is in memory.
  void OnLoaded(PlacementVersion version, uint64_t generation,
                std::shared_ptr<const kernels::MlpWeights> weights);
  void Fail(Staged* staged, absl::Status status);
  void Tell(const Staged& staged);

  World* const world_;
  SimModel* const model_;
  ExpertMachine* const machine_;
  SimPeerLoader* const peers_;
  const std::function<void(std::function<void()>)> run_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::map<PlacementVersion, std::pair<uint64_t, Staged>> versions_;
  uint64_t next_generation_ = 1;
};

class SimExpert final : public expert::VersionServer {
 public:
  // What the checker wants to know.
  struct Hooks {
    std::function<void(const SimExpert&, PlacementVersion,
                       const std::vector<expert::ExpertKey>&)>
        on_serve;
    std::function<void(const SimExpert&, PlacementVersion)> on_retire;
    std::function<void(const SimExpert&, const control::ClusterView&)> on_view;
  };

  SimExpert(World* world, Network* network, Fabric* fabric, ControlPlane* plane,
            SimModel* model, expert::ExpertMetrics* metrics,
            ExpertMachine* machine, Hooks hooks,
            std::function<void()> on_refused);
  ~SimExpert() override;

  void Resume();
  void JumpClock(absl::Duration by) { clock_.Jump(by); }
  // SIGTERM: hand over, leave, finish, end. `ended` is called when done.
  void Terminate(std::function<void()> ended);
  void VanishSilently() {
    transport_.VanishSilently();
    peers_.VanishSilently();
  }

  const std::string& name() const { return machine_->name; }
  Place place() const { return machine_->place; }
  WorkerId worker() const { return worker_; }
  const SimTransport& transport() const { return transport_; }
  const SimPeerLoader& peers() const { return peers_; }
  const expert::ExpertDataPath& path() const { return path_; }
  const std::map<PlacementVersion, std::vector<expert::ExpertKey>>& serving()
      const {
    return serving_;
  }
  const control::FollowedView& followed() const { return client_.followed(); }
  bool registered() const { return client_.session().registered(); }
  uint64_t incarnation() const { return incarnation_; }

  // VersionServer: from the follower.
  void SetIdentity(uint64_t cluster_id, WorkerId worker) override;
  void Serve(PlacementVersion version,
             std::shared_ptr<const expert::Shard> shard,
             std::function<void()> serving) override;
  void Retire(PlacementVersion version) override;

 private:
  void RotRows(transport::Message& message) const;
  void Wake();
  void Turn();
  void LookDrained();
  void Leave();

  World* const world_;
  Network* const network_;
  ExpertMachine* const machine_;
  const Hooks hooks_;
  const std::function<void()> on_refused_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  ProcessClock clock_;
  ThreadPool pool_{ThreadPool::Options{}};
  SimTransport transport_;
  expert::ExpertDataPath path_;
  SimPeerLoader peers_;
  SimShards shards_;
  expert::PlacementFollower follower_;
  SimControlClient client_;

  WorkerId worker_;
  uint64_t incarnation_ = 0;
  std::map<PlacementVersion, std::vector<expert::ExpertKey>> serving_;
  std::vector<std::function<void()>> commands_;
  absl::Time busy_until_ = absl::InfinitePast();
  bool turn_scheduled_ = false;
  bool leaving_ = false;
  std::function<void()> ended_;
};

}  // namespace trunkline::sim
