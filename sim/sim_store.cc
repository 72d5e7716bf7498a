#include "sim/sim_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace trunkline::sim {

using coordinator::StoreChange;
using coordinator::StoreContents;

namespace {

template <typename Record, typename Key>
void Put(std::vector<Record>* list, const Record& record, Key key) {
  const auto at = std::lower_bound(
      list->begin(), list->end(), key(record),
      [&](const Record& r, const auto& k) { return key(r) < k; });
  if (at != list->end() && key(*at) == key(record)) {
    *at = record;
  } else {
    list->insert(at, record);
  }
}

}  // namespace

void ApplyChange(const StoreChange& change, StoreContents* contents) {
  if (change.cluster) contents->cluster = *change.cluster;
  for (const auto& worker : change.workers)
    Put(&contents->workers, worker, [](const auto& w) { return w.id; });
  for (const auto& placement : change.placements)
    Put(&contents->placements, placement,
        [](const auto& p) { return p.map.version; });
  for (const auto& entry : change.history)
    Put(&contents->history, entry, [](const auto& h) { return h.sequence; });
  for (const WorkerId worker : change.forgotten_workers)
    std::erase_if(contents->workers,
                  [&](const auto& w) { return w.id == worker; });
  for (const PlacementVersion version : change.forgotten_placements)
    std::erase_if(contents->placements,
                  [&](const auto& p) { return p.map.version == version; });
  std::erase_if(contents->history, [&](const auto& entry) {
    return entry.sequence < change.history_from;
  });
}

class SimStore final : public coordinator::PlacementStore {
 public:
  SimStore(SimDisk* disk, uint64_t epoch, std::function<SimDisk::Road()> road)
      : disk_(disk), epoch_(epoch), road_(std::move(road)) {}

  absl::StatusOr<StoreContents> Load() override {
    if (road_() != SimDisk::Road::kOpen || disk_->unreadable_)
      return absl::UnavailableError("the disk is away");
    if (disk_->epoch() != epoch_ && !disk_->world_->has(PlantedBug::kNoFence))
      return Deposed();
    return disk_->contents();
  }
  absl::Status Commit(const StoreChange& change) override {
    const SimDisk::Road road = road_();
    if (road == SimDisk::Road::kNoWayThere)
      return absl::UnavailableError("the disk can not be reached");
    const absl::Status status = disk_->Commit(epoch_, change);
    if (road == SimDisk::Road::kOpen) return status;
    return absl::UnavailableError("the disk's answer did not arrive");
  }
  absl::Status Confirm() override {
    if (road_() != SimDisk::Road::kOpen || disk_->unreadable_)
      return absl::UnavailableError("the disk is away");
    return disk_->epoch() == epoch_ ? absl::OkStatus() : Deposed();
  }

 private:
  absl::Status Deposed() const {
    return absl::FailedPreconditionError(
        absl::StrCat("epoch ", disk_->epoch(),
                     " has begun, this coordinator's is ", epoch_));
  }

  SimDisk* const disk_;
  const uint64_t epoch_;
  const std::function<SimDisk::Road()> road_;
};

SimDisk::SimDisk(World* world, uint64_t cluster_id) : world_(world) {
  contents_.cluster.cluster_id = cluster_id;
}

absl::StatusOr<std::unique_ptr<coordinator::PlacementStore>> SimDisk::Open(
    std::function<Road()> road) {
  if (road() != Road::kOpen || unreadable_)
    return absl::UnavailableError("the disk is away");
  DropTornTail();
  ++contents_.cluster.epoch;
  return std::unique_ptr<coordinator::PlacementStore>(
      std::make_unique<SimStore>(this, contents_.cluster.epoch,
                                 std::move(road)));
}

void SimDisk::DropTornTail() {
  for (const LogEntry& entry : tail_) {
    if (!entry.whole && world_->has(PlantedBug::kReplayTornTail)) {
      coordinator::StoreChange half = entry.change;
      half.cluster.reset();
      half.history.clear();
      TakeEffect(half);
      continue;
    }
    if (!entry.whole) {
      world_->Trace("disk: a torn transaction is dropped");
      continue;
    }
    ApplyChange(entry.change, &contents_);
  }
  tail_.clear();
}

absl::Status SimDisk::Commit(uint64_t epoch, const StoreChange& change) {
  if (epoch != this->epoch() && !world_->has(PlantedBug::kNoFence)) {
    ++fenced_writes_;
    world_->Trace("disk: a write of epoch ", epoch, " is refused");
    return absl::FailedPreconditionError(absl::StrCat(
        "epoch ", this->epoch(), " has begun, this coordinator's is ", epoch));
  }
  if (unreadable_) return absl::UnavailableError("the disk is away");
  switch (std::exchange(fault_, WriteFault::kNone)) {
    case WriteFault::kNone:
      TakeEffect(change);
      return absl::OkStatus();
    case WriteFault::kBefore:
      if (world_->has(PlantedBug::kSayBeforeCommit)) return absl::OkStatus();
      return absl::InternalError("the disk failed");
    case WriteFault::kAfter:
      TakeEffect(change);
      return absl::InternalError("the disk failed");
    case WriteFault::kTorn:
      ++torn_writes_;
      tail_.push_back({change, /*whole=*/false});
      if (on_torn_) on_torn_();
      return absl::InternalError("the process died in the write");
  }
  return absl::OkStatus();
}

void SimDisk::TakeEffect(const StoreChange& change) {
  const StoreContents before = contents_;
  // A leader keeps its epoch whatever record it writes.
  const uint64_t epoch = contents_.cluster.epoch;
  ApplyChange(change, &contents_);
  contents_.cluster.epoch = epoch;
  if (on_commit_) on_commit_(before, change, contents_);
}

}  // namespace trunkline::sim
