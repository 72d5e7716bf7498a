#pragma once

// A trunk worker process: the production request core (trunk_worker.h) and
// expert link over simulated wires. In the place of the engine's thread a turn
// that never waits; in the place of the layer walk the simulated model, whose
// rows are functions of the token prefix.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/sim_control.h"
#include "sim/sim_model.h"
#include "sim/sim_transport.h"
#include "sim/world.h"
#include "trunk_worker/canary.h"
#include "trunk_worker/expert_link.h"
#include "trunk_worker/resume_token.h"
#include "trunk_worker/trunk_worker.h"

namespace trunkline::sim {

struct TrunkMachine {
  std::string name;
  Place place = 0;
  absl::Duration layer_time_most = absl::Microseconds(200);
};

class SimTrunk {
 public:
  struct Hooks {
    std::function<void(const SimTrunk&, const control::ClusterView&)> on_view;
    std::function<void(const SimTrunk&, PlacementVersion)> on_step;
    // A layer was combined: rows is what the experts were given.
    std::function<void(const SimTrunk&, const trunk::MoeCall&,
                       const std::vector<Row>& rows)>
        on_combined;
    std::function<void(const SimTrunk&, const absl::Status&)> on_step_failed;
  };
  struct Options {
    trunk::ExpertLink::Options link;
    trunk::TrunkWorker::Options core;
    int64_t sequences_max = 4, tokens_max = 64;
    int64_t canary_tokens = 0;  // of its prompt; 0: no canary
  };

  SimTrunk(World* world, Network* network, Fabric* fabric, ControlPlane* plane,
           const SimModel* model, const TrunkMachine* machine,
           const Options& options, Hooks hooks,
           std::function<void()> on_refused);
  ~SimTrunk();
  SimTrunk(const SimTrunk&) = delete;
  SimTrunk& operator=(const SimTrunk&) = delete;

  void Resume();
  void JumpClock(absl::Duration by);
  void VanishSilently() { transport_.VanishSilently(); }

  // With every piece of a stream comes the token to go on with elsewhere.
  using StreamSink =
      std::function<void(trunk::Output, const std::string& resume_token)>;
  // The generation service: every request gets exactly one finished output.
  void Submit(trunk::GenerationRequest request, StreamSink sink);
  // Goes on with a stream that another trunk began: `request` is the first one
  // again, `delivered` what its client has. An error: the token was made for
  // something else.
  absl::Status Continue(trunk::GenerationRequest request,
                        const std::string& resume_token,
                        std::vector<int32_t> delivered, StreamSink sink);
  void Cancel(RequestId request);

  const std::string& name() const { return machine_->name; }
  Place place() const { return machine_->place; }
  WorkerId worker() const { return identity_.worker; }
  uint64_t incarnation() const { return identity_.incarnation; }
  absl::Time Now() const { return clock_.Now(); }
  const trunk::ExpertLink& link() const { return link_; }
  const SimTransport& transport() const { return transport_; }
  const control::FollowedView& followed() const { return client_.followed(); }
  // Of the step under way, by this process's own account and not by the link's;
  // invalid: none.
  PlacementVersion version_in_use() const;
  // Refuses what comes and has nothing.
  bool at_rest() const {
    return draining_ && core_.idle() && !step_.has_value();
  }
  bool idle() const {
    return mail_.empty() && core_.idle() && !step_.has_value();
  }

 private:
  // A step under way, layer by layer.
  struct Step {
    trunk::StepPlan plan;
    PlacementVersion version;
    uint64_t replaced_before = 0;  // plans that the link had replaced
    size_t layer = 0;
    bool exchanging = false;
    absl::Time next_layer_at;  // world time: the trunk computes until then
    std::vector<Row> rows;
    std::vector<std::vector<int32_t>> prefixes;  // of each row
    std::vector<float> input, output;
    routing::RouteTable routes;
    trunk::RoutesExecuted executed;
    trunk::MoeCall call;
  };

  void FollowDrain(const control::ClusterView& view);
  void Wake() { WakeAt(world_->now()); }
  void WakeAt(absl::Time world_time);
  void Turn();
  void TakeMail();
  void LookAtExperts();
  void Deliver();
  void BeginStep();
  bool AdvanceStep();  // false: it waits
  void BeginLayer();
  void EndStep(const absl::Status& status);
  void ShowLogits(const trunk::StepRun& run, size_t first_row) const;
  trunk::Canary::Options CanaryOptions(int64_t prompt_tokens);
  void PrepareRows();

  World* const world_;
  Network* const network_;
  const SimModel* const model_;
  const TrunkMachine* const machine_;
  const Hooks hooks_;
  const std::function<void()> on_refused_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  ProcessClock clock_;
  ThreadPool pool_{ThreadPool::Options{}};
  SimTransport& transport_;  // link_'s
  std::unique_ptr<trunk::SequencePool> states_;
  trunk::ExpertLink link_;
  trunk::TrunkWorker core_;
  trunk::Canary canary_;
  uint64_t next_canary_ = 1;
  PlacementVersion active_;  // by the newest view
  bool draining_ = false;    // by the same
  SimControlClient client_;

  control::Identity identity_;
  std::vector<trunk::Event> mail_;
  struct Stream {
    StreamSink sink;
    trunk::ResumeTracker tracker;
  };
  std::map<RequestId, Stream> streams_;
  std::map<RequestId, std::vector<int32_t>> texts_;  // prompt and outputs
  absl::Status readiness_ = absl::UnknownError("not looked yet");
  std::optional<Step> step_;
  absl::Time wake_at_ = absl::InfiniteFuture();
};

}  // namespace trunkline::sim
