#pragma once

// What has to hold at every moment of a run, whatever fails (docs/simulator.md
// lists the invariants). Sees everything: every message as it is sent, every
// transaction, every view as it is delivered. Changes nothing.

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "coordinator/durable_coordinator.h"
#include "dispatch/expert_frame.h"
#include "sim/network.h"
#include "sim/sim_expert.h"
#include "sim/sim_model.h"
#include "sim/sim_store.h"
#include "sim/sim_trunk.h"
#include "sim/world.h"

namespace trunkline::sim {

// The processes that run now.
struct ClusterState {
  std::function<std::vector<const SimTrunk*>()> trunks;
  std::function<std::vector<const SimExpert*>()> experts;
  // The coordinator that may write; null: none leads just now.
  std::function<const coordinator::DurableCoordinator*()> leader;
  std::function<coordinator::Moment()> leader_time;
};

class ClusterChecker {
 public:
  ClusterChecker(World* world, Network* network, const SimModel* model,
                 SimDisk* disk, absl::Duration trunk_grace, ClusterState state);

  // The first violation; empty: none.
  const std::string& violation() const { return violation_; }
  void Fail(const std::string& invariant, const std::string& what);

  void OnSend(Place from, Place to, uint64_t pipe,
              const transport::Message& message);
  void OnCommit(const coordinator::StoreContents& before,
                const coordinator::StoreChange& change,
                const coordinator::StoreContents& after);
  // The leader shows a view; nobody has it yet.
  void OnPublish(const control::ClusterView& view);
  void OnTrunkView(const SimTrunk& trunk, const control::ClusterView& view);
  void OnExpertView(const SimExpert& expert, const control::ClusterView& view);
  void OnStep(const SimTrunk& trunk, PlacementVersion version);
  void OnStepFailed(const SimTrunk& trunk, const absl::Status& status);
  void OnCombined(const SimTrunk& trunk, const trunk::MoeCall& call,
                  const std::vector<Row>& rows);
  void OnServe(const SimExpert& expert, PlacementVersion version,
               const std::vector<expert::ExpertKey>& keys);
  void OnRetire(const SimExpert& expert, PlacementVersion version);
  // A process ended; what it had seen is forgotten.
  void OnProcessEnd(Place place);
  // Nothing runs and nothing is on its way.
  void CheckIdle(size_t messages_on_the_way);

  // Somebody's weights are wrong on purpose: what experts answer is not
  // compared from here on, until it counts again.
  void SuspendAnswers(bool suspended) { answers_suspended_ = suspended; }
  bool answers_suspended() const { return answers_suspended_; }

  uint64_t rows_checked() const { return rows_checked_; }
  uint64_t answers_checked() const { return answers_checked_; }
  uint64_t commits_checked() const { return commits_checked_; }

 private:
  // One dispatch frame: connection, step, layer, attempt.
  using FrameName = std::tuple<uint64_t, uint64_t, uint32_t, uint16_t>;
  struct SentFrame {
    uint64_t version = 0;
    uint32_t worker_rank = 0;
    std::vector<uint32_t> token_id, expert_id;
    std::vector<uint16_t> slot;
    std::vector<int32_t> gate;
    std::vector<Row> row;  // of each route
  };
  // What a process has seen of the cluster.
  struct Seen {
    uint64_t epoch = 0, revision = 0;
    PlacementVersion active, last_step;
  };

  void OnDispatch(Place from, Place to, uint64_t pipe,
                  const transport::Message& message);
  void CheckAskedOnce(Place from, const dispatch::DispatchFrameView& view);
  void OnAnswer(Place from, uint64_t pipe, const transport::Message& message);
  void CheckView(Place place, const control::ClusterView& view);
  void CheckTransitions(const coordinator::StoreContents& before,
                        const coordinator::StoreContents& after,
                        const coordinator::StoreChange& change);
  void CheckRetirement(PlacementVersion version);
  void CheckWorkers(const coordinator::StoreContents& before,
                    const coordinator::StoreContents& after);
  const coordinator::PlacementRecord* FindRecord(
      PlacementVersion version) const;
  bool PlacedOn(const coordinator::PlacementRecord& record, LayerIndex layer,
                uint32_t expert, WorkerId worker) const;
  const SimExpert* ExpertAt(Place place) const;
  const SimTrunk* TrunkAt(Place place) const;

  World* const world_;
  Network* const network_;
  const SimModel* const model_;
  SimDisk* const disk_;
  const absl::Duration trunk_grace_;
  const ClusterState state_;

  std::string violation_;
  std::map<FrameName, SentFrame> frames_;
  // Routes that a worker answered, by trunk place: (step, layer, attempt,
  // worker).
  std::map<Place, std::set<std::tuple<uint64_t, uint32_t, uint16_t, uint32_t>>>
      answered_;
  std::map<Place, Seen> seen_;
  // Routes of a trunk's layer under way, by who was asked: (step, layer,
  // version, worker, row, expert).
  using Asked =
      std::tuple<uint64_t, uint32_t, uint64_t, uint32_t, uint32_t, uint32_t>;
  std::map<Place, std::set<Asked>> asked_;
  // Trunks that a retired version need not have waited for.
  std::set<std::pair<Place, PlacementVersion>> excused_;
  bool answers_suspended_ = false;
  uint64_t rows_checked_ = 0, answers_checked_ = 0, commits_checked_ = 0;
};

}  // namespace trunkline::sim
