#pragma once

// Simulated time: a queue of things to do, taken in order of their time and,
// at equal times, of their making. Everything random in a run is drawn from one
// seed here, so a seed is a run.
//
// The trace is what happened in words; its digest tells two runs apart. With
// `keep_lines` the words are kept, else only hashed.

#include <cstdint>
#include <functional>
#include <queue>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/random.h"
#include "sim/planted_bug.h"

namespace trunkline::sim {

class World {
 public:
  explicit World(uint64_t seed);
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  uint64_t seed() const { return seed_; }
  // For the mutation check alone.
  void Plant(PlantedBug bug) { bug_ = bug; }
  bool has(PlantedBug bug) const { return bug_ == bug; }
  absl::Time now() const { return now_; }
  absl::Duration elapsed() const { return now_ - absl::UnixEpoch(); }

  void At(absl::Time time, std::function<void()> action);
  void After(absl::Duration delay, std::function<void()> action) {
    At(now_ + delay, std::move(action));
  }
  // Runs the earliest action; false when there is none before `end`, which is
  // then the time.
  bool RunOne(absl::Time end);
  uint64_t actions_run() const { return actions_run_; }

  uint64_t Below(uint64_t limit) { return random_.NextBelow(limit); }
  bool Chance(double probability) { return random_.NextUnit() < probability; }
  // Uniform between the two.
  absl::Duration Between(absl::Duration least, absl::Duration most);
  template <typename T>
  const T& Pick(const std::vector<T>& from) {
    return from[Below(from.size())];
  }

  template <typename... Words>
  void Trace(const Words&... words) {
    Record(absl::StrCat(words...));
  }
  void KeepLines() { keep_lines_ = true; }
  const std::vector<std::string>& lines() const { return lines_; }
  uint64_t digest() const { return digest_; }

 private:
  struct Action {
    absl::Time time;
    uint64_t order = 0;
    std::function<void()> run;
    bool operator<(const Action& other) const {
      return time != other.time ? time > other.time : order > other.order;
    }
  };
  void Record(const std::string& what);

  const uint64_t seed_;
  PlantedBug bug_ = PlantedBug::kNone;
  absl::Time now_ = absl::UnixEpoch();
  std::priority_queue<Action> queue_;
  uint64_t next_order_ = 0, actions_run_ = 0;
  RandomStream random_;
  bool keep_lines_ = false;
  std::vector<std::string> lines_;
  uint64_t digest_ = 0;
};

// One process's monotonic clock: the world's time plus an offset that means
// nothing, until it jumps.
class ProcessClock final : public Clock {
 public:
  ProcessClock(const World* world, absl::Duration offset)
      : world_(world), offset_(offset) {}
  absl::Time Now() const override { return world_->now() + offset_; }
  absl::Time ToWorld(absl::Time local) const { return local - offset_; }
  // A monotonic clock jumps forward only.
  void Jump(absl::Duration by) { offset_ += by; }

 private:
  const World* const world_;
  absl::Duration offset_;
};

}  // namespace trunkline::sim
