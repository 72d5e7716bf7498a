// The half of ClusterChecker that judges transactions and rest.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "sim/cluster_checker.h"

namespace trunkline::sim {

using coordinator::PlacementRecord;
using coordinator::StoreContents;
using placement::VersionState;

namespace {

const PlacementRecord* Find(const StoreContents& contents,
                            PlacementVersion version) {
  for (const PlacementRecord& record : contents.placements) {
    if (record.map.version == version) return &record;
  }
  return nullptr;
}

int CountActive(const StoreContents& contents) {
  return static_cast<int>(std::count_if(
      contents.placements.begin(), contents.placements.end(),
      [](const auto& p) { return p.state == VersionState::kActive; }));
}

// The states that a version passes through in one transaction are legal as
// long as a chain of legal transitions leads from one to the other.
bool Reachable(VersionState from, VersionState to) {
  if (from == to || placement::IsLegalTransition(from, to)) return true;
  for (int s = 1; s <= static_cast<int>(VersionState::kAbandoned); ++s) {
    const auto middle = static_cast<VersionState>(s);
    if (middle != from && placement::IsLegalTransition(from, middle) &&
        Reachable(middle, to))
      return true;
  }
  return false;
}

}  // namespace

void ClusterChecker::OnCommit(const StoreContents& before,
                              const coordinator::StoreChange& change,
                              const StoreContents& after) {
  ++commits_checked_;
  CheckTransitions(before, after, change);
  CheckWorkers(before, after);
  if (after.cluster.next_version < before.cluster.next_version ||
      after.cluster.next_worker < before.cluster.next_worker ||
      after.cluster.cluster_id != before.cluster.cluster_id) {
    Fail("the coordinator's numbers only grow",
         absl::StrCat("next version ", before.cluster.next_version, " -> ",
                      after.cluster.next_version));
  }
  for (const PlacementRecord& record : change.placements) {
    const PlacementRecord* old = Find(before, record.map.version);
    const bool was_final = old != nullptr && placement::IsFinal(old->state);
    if (record.state == VersionState::kRetired && !was_final)
      CheckRetirement(record.map.version);
  }
}

void ClusterChecker::CheckTransitions(const StoreContents& before,
                                      const StoreContents& after,
                                      const coordinator::StoreChange& change) {
  for (const PlacementRecord& record : change.placements) {
    const PlacementRecord* old = Find(before, record.map.version);
    const std::string what = absl::StrCat("version ", record.map.version.value);
    if (old == nullptr) {
      if (record.map.version.value < before.cluster.next_version)
        Fail("a number never means two placements", what);
      if (after.cluster.model) {
        const absl::Status valid = placement::ValidatePlacement(
            record.map, after.cluster.model->moe_layers);
        if (!valid.ok())
          Fail("every placement is whole", std::string(valid.message()));
      }
      continue;
    }
    if (!Reachable(old->state, record.state)) {
      Fail("versions live as they should",
           absl::StrCat(what, " goes from ", Name(old->state), " to ",
                        Name(record.state)));
    }
    if (old->map.layers.size() != record.map.layers.size()) {
      Fail("a number never means two placements", what);
      continue;
    }
    for (size_t l = 0; l < record.map.layers.size(); ++l) {
      if (old->map.layers[l].replicas != record.map.layers[l].replicas)
        Fail("a number never means two placements", what);
    }
  }
  const int active = CountActive(after);
  if (active > 1 || (active == 0 && CountActive(before) == 1)) {
    Fail("exactly one version is active, once one is",
         absl::StrCat(active, " are"));
  }
  const auto open =
      std::count_if(after.placements.begin(), after.placements.end(),
                    [](const auto& p) { return placement::IsOpen(p.state); });
  if (open > 1) Fail("one change at a time", absl::StrCat(open, " are open"));
  // Nobody activates what not every worker has loaded.
  for (const PlacementRecord& record : change.placements) {
    if (record.state != VersionState::kActive) continue;
    const PlacementRecord* old = Find(before, record.map.version);
    if (old != nullptr && old->state == VersionState::kActive) continue;
    for (const WorkerId worker : record.map.Workers()) {
      for (const SimExpert* expert : state_.experts()) {
        if (expert->worker() != worker || !expert->registered()) continue;
        const auto& record_of =
            std::find_if(after.workers.begin(), after.workers.end(),
                         [&](const auto& w) { return w.id == worker; });
        const bool same_process =
            record_of != after.workers.end() && record_of->alive &&
            expert->incarnation() == record_of->incarnation;
        if (same_process && !expert->serving().contains(record.map.version)) {
          Fail("a version is active only when all its workers serve it",
               absl::StrCat("version ", record.map.version.value, ", ",
                            expert->name()));
        }
      }
    }
  }
}

// A version ends only when no trunk that the coordinator counts on may use it.
void ClusterChecker::CheckRetirement(PlacementVersion version) {
  const coordinator::DurableCoordinator* leader = state_.leader();
  if (leader == nullptr) return;
  const coordinator::Membership& membership = leader->core().membership();
  const absl::Time now = state_.leader_time().now;
  for (const SimTrunk* trunk : state_.trunks()) {
    const PlacementVersion oldest = trunk->version_in_use();
    const auto seen = seen_.find(trunk->place());
    const bool would_use =
        seen != seen_.end() && seen->second.active == version;
    const bool uses = oldest.valid() && oldest <= version;
    if (!uses && !would_use) continue;
    const coordinator::Member* member = membership.Find(trunk->worker());
    const bool counted_on =
        member != nullptr && !member->record.left &&
        member->record.incarnation == trunk->incarnation() &&
        (member->alive() || now < member->lost_at + trunk_grace_);
    if (!counted_on) {
      excused_.insert({trunk->place(), version});
      continue;
    }
    Fail("every version still referenced keeps its owners",
         absl::StrCat("version ", version.value, " is retired while ",
                      trunk->name(),
                      uses ? " has a step in flight under version "
                           : " would begin its next step under version ",
                      uses ? oldest.value : version.value));
  }
}

void ClusterChecker::CheckWorkers(const StoreContents& before,
                                  const StoreContents& after) {
  std::set<std::pair<std::string, int>> names;
  for (const auto& worker : after.workers) {
    if (!names
             .insert({worker.registration.name,
                      static_cast<int>(worker.registration.role)})
             .second) {
      Fail("a name is one worker", worker.registration.name);
    }
  }
  for (const auto& old : before.workers) {
    for (const auto& now : after.workers) {
      if (now.id != old.id) continue;
      if (now.incarnation < old.incarnation ||
          now.registration.name != old.registration.name)
        Fail("a worker's id is its own", old.registration.name);
    }
  }
}

void ClusterChecker::OnPublish(const control::ClusterView& view) {
  const coordinator::DurableCoordinator* leader = state_.leader();
  if (leader == nullptr || leader->core().cluster().epoch != view.epoch) return;
  for (const control::WorkerView& worker : view.workers) {
    if (worker.role != control::Role::kTrunk || !worker.drained ||
        !worker.alive)
      continue;
    for (const SimTrunk* trunk : state_.trunks()) {
      if (trunk->worker() != worker.id ||
          trunk->incarnation() != worker.incarnation || trunk->at_rest())
        continue;
      Fail("a drained trunk refuses new requests and has none", worker.name);
    }
  }
}

void ClusterChecker::CheckIdle(size_t messages_on_the_way) {
  if (messages_on_the_way != 0) {
    Fail("credits and buffers return to zero at idle",
         absl::StrCat(messages_on_the_way, " messages are on the way"));
  }
  for (const SimTrunk* trunk : state_.trunks()) {
    if (trunk->transport().messages_held() != 0) {
      Fail("credits and buffers return to zero at idle",
           absl::StrCat(trunk->name(), " holds ",
                        trunk->transport().messages_held(), " messages"));
    }
    if (trunk->link().oldest_in_flight().valid()) {
      Fail("credits and buffers return to zero at idle",
           absl::StrCat(trunk->name(), " still names a version in flight"));
    }
  }
  for (const SimExpert* expert : state_.experts()) {
    if (expert->transport().messages_held() != 0 ||
        expert->peers().messages_held() != 0 || !expert->path().quiet()) {
      Fail("credits and buffers return to zero at idle",
           absl::StrCat(expert->name(), " holds ",
                        expert->transport().messages_held(), " messages"));
    }
  }
}

}  // namespace trunkline::sim
