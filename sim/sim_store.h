#pragma once

// The durable state of simulated coordinators: a log of transactions that
// outlives them, and stores that write to it as one leader after another. An
// opening begins a new epoch; whoever opened before is deposed and its writes
// are refused.
//
// Faults: a write that fails with or without effect, a store that can not be
// read for a while, and a process that dies in the middle of a write, which
// leaves a torn entry at the end of the log.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/placement_store.h"
#include "sim/world.h"

namespace trunkline::sim {

// Writes a change over contents, as every store does.
void ApplyChange(const coordinator::StoreChange& change,
                 coordinator::StoreContents* contents);

class SimDisk {
 public:
  // Sees every transaction that has taken effect: what was and what is.
  using OnCommit = std::function<void(const coordinator::StoreContents& before,
                                      const coordinator::StoreChange& change,
                                      const coordinator::StoreContents& after)>;

  SimDisk(World* world, uint64_t cluster_id);

  // Whether the opener reaches the disk just now, and hears from it.
  enum class Road { kOpen, kNoWayThere, kNoWayBack };
  // Begins the next epoch. UNAVAILABLE while the disk can not be read.
  absl::StatusOr<std::unique_ptr<coordinator::PlacementStore>> Open(
      std::function<Road()> road);

  // What a reader would find now.
  const coordinator::StoreContents& contents() const { return contents_; }
  uint64_t epoch() const { return contents_.cluster.epoch; }
  void SetOnCommit(OnCommit on_commit) { on_commit_ = std::move(on_commit); }

  enum class WriteFault { kNone, kBefore, kAfter, kTorn };
  // The next write ends so. kTorn: on_torn is called, and has to end the
  // process.
  void FailNextWrite(WriteFault fault) { fault_ = fault; }
  void SetUnreadable(bool unreadable) { unreadable_ = unreadable; }
  void SetOnTorn(std::function<void()> on_torn) {
    on_torn_ = std::move(on_torn);
  }
  uint64_t torn_writes() const { return torn_writes_; }
  uint64_t fenced_writes() const { return fenced_writes_; }

 private:
  friend class SimStore;
  struct LogEntry {
    coordinator::StoreChange change;
    bool whole = false;  // its end mark is there
  };
  absl::Status Commit(uint64_t epoch, const coordinator::StoreChange& change);
  void TakeEffect(const coordinator::StoreChange& change);
  void DropTornTail();

  World* const world_;
  coordinator::StoreContents contents_;
  std::vector<LogEntry> tail_;  // entries whose end mark may be missing
  OnCommit on_commit_;
  WriteFault fault_ = WriteFault::kNone;
  bool unreadable_ = false;
  std::function<void()> on_torn_;
  uint64_t torn_writes_ = 0, fenced_writes_ = 0;
};

}  // namespace trunkline::sim
