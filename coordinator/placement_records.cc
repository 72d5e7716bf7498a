// What the driver holds, looked up: no event changes anything here.

#include "coordinator/placement_driver.h"

namespace trunkline::coordinator {

using placement::IsFinal;
using placement::IsOpen;
using placement::PlacementMap;
using placement::VersionState;

const PlacementRecord* PlacementDriver::Active() const {
  for (const auto& [version, record] : records_) {
    if (record.state == VersionState::kActive) return &record;
  }
  return nullptr;
}

const PlacementRecord* PlacementDriver::OpenChange() const {
  for (const auto& [version, record] : records_) {
    if (IsOpen(record.state)) return &record;
  }
  return nullptr;
}

PlacementRecord* PlacementDriver::MutableActive() {
  const PlacementRecord* record = Active();
  return record == nullptr ? nullptr : &records_.at(record->map.version);
}

PlacementRecord* PlacementDriver::MutableOpen() {
  const PlacementRecord* record = OpenChange();
  return record == nullptr ? nullptr : &records_.at(record->map.version);
}

const PlacementRecord* PlacementDriver::Find(PlacementVersion version) const {
  const auto found = records_.find(version);
  return found == records_.end() ? nullptr : &found->second;
}

const PlacementRecord* PlacementDriver::Previous() const {
  const PlacementRecord* active = Active();
  const PlacementRecord* previous = nullptr;
  for (const auto& [version, record] : records_) {
    // Only versions that served are ever draining or retired.
    const bool served = record.state == VersionState::kDraining ||
                        record.state == VersionState::kRetired;
    if (active != nullptr && served && version < active->map.version) {
      previous = &record;
    }
  }
  return previous;
}

std::set<PlacementVersion> PlacementDriver::LiveVersions() const {
  std::set<PlacementVersion> live;
  for (const auto& [version, record] : records_) {
    if (!IsFinal(record.state)) live.insert(version);
  }
  return live;
}

std::set<WorkerId> PlacementDriver::NamedWorkers() const {
  std::set<WorkerId> named;
  for (const auto& [version, record] : records_) {
    if (IsFinal(record.state)) continue;
    for (const WorkerId worker : record.map.Workers()) named.insert(worker);
  }
  return named;
}

std::vector<const PlacementMap*> PlacementDriver::HeldMaps() const {
  std::vector<const PlacementMap*> held;
  for (const auto& [version, record] : records_) {
    if (placement::HoldsShards(record.state)) held.push_back(&record.map);
  }
  return held;
}

void PlacementDriver::TakeChanges(StoreChange* change) {
  for (const PlacementVersion version : changed_) {
    change->placements.push_back(records_.at(version));
  }
  change->forgotten_placements.assign(forgotten_.begin(), forgotten_.end());
  change->history = std::move(new_history_);
  if (!history_.empty()) change->history_from = history_.front().sequence;
  changed_.clear();
  forgotten_.clear();
  new_history_.clear();
}

}  // namespace trunkline::coordinator
