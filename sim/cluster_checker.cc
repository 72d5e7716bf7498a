#include "sim/cluster_checker.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dispatch/expert_frame.h"
#include "expert_worker/shard_frame.h"

namespace trunkline::sim {

using coordinator::PlacementRecord;
using coordinator::StoreContents;
using placement::VersionState;

ClusterChecker::ClusterChecker(World* world, Network* network,
                               const SimModel* model, SimDisk* disk,
                               absl::Duration trunk_grace, ClusterState state)
    : world_(world),
      network_(network),
      model_(model),
      disk_(disk),
      trunk_grace_(trunk_grace),
      state_(std::move(state)) {}

void ClusterChecker::Fail(const std::string& invariant,
                          const std::string& what) {
  if (!violation_.empty()) return;
  violation_ = absl::StrCat(invariant, ": ", what, " (after ",
                            absl::FormatDuration(world_->elapsed()), ")");
  world_->Trace("VIOLATION ", violation_);
}

const PlacementRecord* ClusterChecker::FindRecord(
    PlacementVersion version) const {
  for (const PlacementRecord& record : disk_->contents().placements) {
    if (record.map.version == version) return &record;
  }
  return nullptr;
}

bool ClusterChecker::PlacedOn(const PlacementRecord& record, LayerIndex layer,
                              uint32_t expert, WorkerId worker) const {
  const placement::LayerPlacement* placed = record.map.FindLayer(layer);
  if (placed == nullptr || expert >= placed->replicas.size()) return false;
  const auto& replicas = placed->replicas[expert];
  return std::any_of(
      replicas.begin(), replicas.end(),
      [&](const placement::Replica& r) { return r.worker == worker; });
}

const SimExpert* ClusterChecker::ExpertAt(Place place) const {
  for (const SimExpert* expert : state_.experts()) {
    if (expert->place() == place) return expert;
  }
  return nullptr;
}

const SimTrunk* ClusterChecker::TrunkAt(Place place) const {
  for (const SimTrunk* trunk : state_.trunks()) {
    if (trunk->place() == place) return trunk;
  }
  return nullptr;
}

void ClusterChecker::OnSend(Place from, Place to, uint64_t pipe,
                            const transport::Message& message) {
  // Weights on their way from worker to worker: what comes of them shows in the
  // answers.
  if (expert::IsShardFrame({message.data(), message.size})) return;
  const auto kind = dispatch::PeekKind({message.data(), message.size});
  if (!kind.ok()) {
    Fail("frames are well formed", std::string(kind.status().message()));
    return;
  }
  if (*kind == dispatch::FrameKind::kDispatch) {
    OnDispatch(from, to, pipe, message);
  } else if (*kind == dispatch::FrameKind::kAnswer) {
    OnAnswer(from, pipe, message);
  }
}

void ClusterChecker::OnDispatch(Place from, Place to, uint64_t pipe,
                                const transport::Message& message) {
  const auto view = dispatch::DecodeDispatch({message.data(), message.size});
  if (!view.ok()) {
    Fail("frames are well formed", std::string(view.status().message()));
    return;
  }
  const dispatch::FrameHeader& header = view->header;
  CheckAskedOnce(from, *view);
  SentFrame frame;
  frame.version = header.placement_version;
  frame.worker_rank = header.worker_rank;
  frame.token_id.assign(view->token_id.begin(), view->token_id.end());
  frame.slot.assign(view->slot.begin(), view->slot.end());
  frame.expert_id.assign(view->expert_id.begin(), view->expert_id.end());
  for (size_t i = 0; i < view->gate.size(); ++i) {
    frame.gate.push_back(static_cast<int32_t>(view->gate[i]));
    Row row;
    for (int k = 0; k < kWidth; ++k) {
      float value = 0;
      std::memcpy(&value,
                  view->rows.data() + view->row_index[i] * view->row_stride +
                      static_cast<size_t>(k) * sizeof(float),
                  sizeof(float));
      row[k] = static_cast<int32_t>(value);
    }
    frame.row.push_back(row);
  }
  frames_[{pipe, header.step_id, header.layer, header.attempt}] =
      std::move(frame);

  // A worker that is safe to stop gets no route from anybody the coordinator
  // counts on.
  const coordinator::DurableCoordinator* leader = state_.leader();
  const SimTrunk* trunk = TrunkAt(from);
  if (leader == nullptr || trunk == nullptr ||
      excused_.contains({from, PlacementVersion(header.placement_version)}))
    return;
  const coordinator::Coordinator& core = leader->core();
  const coordinator::Member* member =
      core.membership().Find(WorkerId(header.worker_rank));
  const coordinator::Member* sender = core.membership().Find(trunk->worker());
  if (member == nullptr || !member->draining() || sender == nullptr ||
      !sender->alive())
    return;
  if (core.driver().NamedWorkers().contains(WorkerId(header.worker_rank)))
    return;
  Fail("a drained worker gets no new route",
       absl::StrCat(network_->name(from), " sends a frame of version ",
                    header.placement_version, " to ", network_->name(to),
                    ", which was declared drained"));
}

// Who did not answer a route is not asked for it again in the same layer: the
// retry goes to another worker, or follows a newer placement.
void ClusterChecker::CheckAskedOnce(Place from,
                                    const dispatch::DispatchFrameView& view) {
  const dispatch::FrameHeader& header = view.header;
  std::set<Asked>& asked = asked_[from];
  if (!asked.empty() && (std::get<0>(*asked.begin()) != header.step_id ||
                         std::get<1>(*asked.begin()) != header.layer))
    asked.clear();
  for (size_t i = 0; i < view.token_id.size(); ++i) {
    const Asked route(header.step_id, header.layer, header.placement_version,
                      header.worker_rank, view.token_id[i], view.expert_id[i]);
    if (asked.insert(route).second) continue;
    Fail("a route is retried on another worker",
         absl::StrCat(network_->name(from), ", step ", header.step_id,
                      ", layer ", header.layer, ", attempt ", header.attempt,
                      ": expert ", view.expert_id[i], " of worker ",
                      header.worker_rank, " again"));
    return;
  }
}

void ClusterChecker::OnAnswer(Place from, uint64_t pipe,
                              const transport::Message& message) {
  const auto view = dispatch::DecodeAnswer({message.data(), message.size});
  const std::string who = network_->name(from);
  if (!view.ok()) {
    Fail("frames are well formed", std::string(view.status().message()));
    return;
  }
  const dispatch::FrameHeader& header = view->header;
  const auto asked =
      frames_.find({pipe, header.step_id, header.layer, header.attempt});
  if (asked == frames_.end()) {
    Fail("nobody answers what was not asked", who);
    return;
  }
  const SentFrame& frame = asked->second;
  const SimExpert* expert = ExpertAt(from);
  const PlacementVersion version(header.placement_version);
  const LayerIndex layer(header.layer);
  if (expert == nullptr) return;
  if (version.value != frame.version) {
    Fail("nobody computes with another version than the message names",
         absl::StrCat(who, " answers version ", version.value, " for ",
                      frame.version));
  }
  const auto serving = expert->serving().find(version);
  const PlacementRecord* record = FindRecord(version);
  if (view->token_id.size() != frame.token_id.size()) {
    Fail("each route is answered once",
         absl::StrCat(who, " answers ", view->token_id.size(), " of ",
                      frame.token_id.size(), " routes"));
    return;
  }
  for (size_t i = 0; i < view->token_id.size(); ++i) {
    const expert::ExpertKey key{layer, ExpertId(view->expert_id[i])};
    const std::string what =
        absl::StrCat(who, ", layer ", layer.value, ", expert ",
                     key.expert.value, ", version ", version.value);
    if (view->expert_id[i] != frame.expert_id[i] ||
        view->token_id[i] != frame.token_id[i] ||
        view->slot[i] != frame.slot[i]) {
      Fail("nobody computes with another expert than the message names", what);
      return;
    }
    if (serving == expert->serving().end() ||
        !std::binary_search(serving->second.begin(), serving->second.end(),
                            key)) {
      Fail("nobody computes what it does not serve", what);
      return;
    }
    if (record != nullptr &&
        !PlacedOn(*record, layer, key.expert.value, expert->worker())) {
      Fail("nobody computes what is not placed on it", what);
      return;
    }
    const Row expected = model_->Expert(key, frame.row[i]);
    for (int k = 0; k < kWidth; ++k) {
      float value = 0;
      std::memcpy(&value,
                  view->rows.data() + i * view->row_stride +
                      static_cast<size_t>(k) * sizeof(float),
                  sizeof(float));
      if (value != static_cast<float>(frame.gate[i] * expected[k]) &&
          !answers_suspended_) {
        Fail("an answer is its expert's output", what);
        return;
      }
    }
  }
  ++answers_checked_;
  // The trunk that asked is at the other end of the pipe; its step may be over.
  for (const SimTrunk* trunk : state_.trunks()) {
    if (trunk->worker().value == header.trunk_rank) {
      answered_[trunk->place()].insert(
          {header.step_id, header.layer, header.attempt, header.worker_rank});
    }
  }
}

void ClusterChecker::OnCombined(const SimTrunk& trunk,
                                const trunk::MoeCall& call,
                                const std::vector<Row>& rows) {
  for (size_t r = 0; r < rows.size(); ++r) {
    const Row expected = model_->Combined(call.layer, rows[r]);
    ++rows_checked_;
    for (int k = 0; k < kWidth; ++k) {
      const float got = call.combined[r * kWidth + static_cast<size_t>(k)];
      if (got == static_cast<float>(expected[k]) || answers_suspended_)
        continue;
      Fail("a combined row equals the single-process reference",
           absl::StrCat(trunk.name(), ", step ", call.step.value, ", layer ",
                        call.layer.value, ", row ", r, ": ", got, " where ",
                        expected[k], " is right"));
      return;
    }
  }
  const auto& answered = answered_[trunk.place()];
  for (size_t r = 0; r < call.executed->routes.size(); ++r) {
    const dispatch::RouteExecution& route = call.executed->routes[r];
    if (answered.contains({call.step.value, call.layer.value, route.attempt,
                           route.worker.value}))
      continue;
    Fail("each accepted route is answered exactly once",
         absl::StrCat(trunk.name(), ", step ", call.step.value, ", layer ",
                      call.layer.value, ", route ", r,
                      " is done and nobody answered it"));
    return;
  }
  // Whatever comes now for this layer is late.
  std::erase_if(answered_[trunk.place()], [&](const auto& entry) {
    return std::get<0>(entry) + 2 < call.step.value;
  });
}

void ClusterChecker::CheckView(Place place, const control::ClusterView& view) {
  Seen& seen = seen_[place];
  if (std::pair(view.epoch, view.revision) <=
      std::pair(seen.epoch, seen.revision)) {
    Fail("views only grow in every process's eyes",
         absl::StrCat(network_->name(place), " is shown (", view.epoch, ", ",
                      view.revision, ") after (", seen.epoch, ", ",
                      seen.revision, ")"));
  }
  if (seen.active.valid() &&
      (!view.active.valid() || view.active < seen.active)) {
    Fail("versions only grow in every process's eyes",
         absl::StrCat(
             network_->name(place), " is shown active version ",
             view.active.valid() ? absl::StrCat(view.active.value) : "none",
             " after ", seen.active.value));
  }
  for (const control::WorkerView& worker : view.workers) {
    if (!worker.drained || worker.role != control::Role::kExpert) continue;
    for (const control::PlacementView& placement : view.placements) {
      const std::vector<WorkerId> named = placement.map.Workers();
      if (!std::binary_search(named.begin(), named.end(), worker.id)) continue;
      Fail("a drained worker gets no new route",
           absl::StrCat(worker.name, " is called drained and version ",
                        placement.map.version.value, " names it"));
    }
  }
  seen.epoch = view.epoch;
  seen.revision = view.revision;
  seen.active = view.active;
}

void ClusterChecker::OnTrunkView(const SimTrunk& trunk,
                                 const control::ClusterView& view) {
  CheckView(trunk.place(), view);
}

void ClusterChecker::OnExpertView(const SimExpert& expert,
                                  const control::ClusterView& view) {
  CheckView(expert.place(), view);
}

void ClusterChecker::OnStep(const SimTrunk& trunk, PlacementVersion version) {
  Seen& seen = seen_[trunk.place()];
  if (seen.last_step.valid() && version < seen.last_step) {
    Fail("versions only grow in every process's eyes",
         absl::StrCat(trunk.name(), " begins a step under version ",
                      version.value, " after ", seen.last_step.value));
  }
  if (version != seen.active) {
    Fail("new steps follow the newest view",
         absl::StrCat(trunk.name(), " begins a step under version ",
                      version.value, ", its view's active is ",
                      seen.active.value));
  }
  seen.last_step = version;
}

void ClusterChecker::OnStepFailed(const SimTrunk& trunk,
                                  const absl::Status& status) {
  const bool typed = absl::IsUnavailable(status) ||
                     absl::IsDeadlineExceeded(status) ||
                     absl::IsResourceExhausted(status);
  if (typed && !status.message().empty()) return;
  Fail("a step ends right or with a typed error",
       absl::StrCat(trunk.name(), ": ", status.ToString()));
}

void ClusterChecker::OnServe(const SimExpert& expert, PlacementVersion version,
                             const std::vector<expert::ExpertKey>& keys) {
  const PlacementRecord* record = FindRecord(version);
  if (record == nullptr) return;
  size_t placed = 0;
  for (const auto& layer : record->map.layers) {
    for (uint32_t e = 0; e < layer.replicas.size(); ++e) {
      if (!PlacedOn(*record, layer.layer, e, expert.worker())) continue;
      ++placed;
      if (!std::binary_search(keys.begin(), keys.end(),
                              expert::ExpertKey{layer.layer, ExpertId(e)})) {
        Fail("a worker serves all that is placed on it",
             absl::StrCat(expert.name(), ", version ", version.value,
                          ", layer ", layer.layer.value, ", expert ", e));
      }
    }
  }
  if (placed != keys.size()) {
    Fail("a worker serves only what is placed on it",
         absl::StrCat(expert.name(), ", version ", version.value));
  }
}

void ClusterChecker::OnRetire(const SimExpert& expert,
                              PlacementVersion version) {
  const PlacementRecord* record = FindRecord(version);
  if (record == nullptr || placement::IsFinal(record->state)) return;
  Fail("every version still referenced keeps its owners",
       absl::StrCat(expert.name(), " drops version ", version.value,
                    ", which is ", Name(record->state)));
}

void ClusterChecker::OnProcessEnd(Place place) {
  seen_.erase(place);
  answered_.erase(place);
  asked_.erase(place);
  std::erase_if(excused_,
                [&](const auto& entry) { return entry.first == place; });
}

}  // namespace trunkline::sim
