#pragma once

// Improves the placement of one layer step by step: each step relieves the
// slowest worker by moving, swapping, adding or replacing one copy. Pure and
// deterministic. Used by balance.cc.

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/random.h"
#include "placement/placement_map.h"
#include "placement/worker_profile.h"

namespace trunkline::placement {

// Memory of the workers over all layers, and the bytes that the search may
// still move. Shared by the searches of all layers.
struct SearchBudget {
  std::vector<uint64_t> final_bytes;   // [workers], under the map searched
  std::vector<uint64_t> staged_bytes;  // the same with what is still held
  uint64_t moved_bytes = 0;            // loads against the current map
  uint64_t moved_bytes_max = 0;
};

// A set of (expert, worker index).
class CopySet {
 public:
  CopySet() = default;
  CopySet(size_t experts, size_t workers)
      : workers_(workers), has_(experts * workers) {}
  void Insert(size_t expert, size_t worker) {
    has_[expert * workers_ + worker] = true;
  }
  void Erase(size_t expert, size_t worker) {
    has_[expert * workers_ + worker] = false;
  }
  bool Has(size_t expert, size_t worker) const {
    return has_[expert * workers_ + worker];
  }

 private:
  size_t workers_ = 0;
  std::vector<bool> has_;  // [experts * workers]
};

// Fixed data of one layer's search.
struct SearchLayer {
  std::vector<double> load;  // [experts]
  uint64_t expert_bytes = 0;
  int64_t copies_max = 0;         // over all workers
  int64_t worker_copies_max = 0;  // per worker
  int64_t replicas_min = 1;       // copies that every expert keeps
  CopySet current;                // that cost nothing to load
  CopySet held;                   // that use memory anyway
};

class LayerSearch {
 public:
  // workers and budget outlive the search. holders: [experts] -> worker
  // indices, distinct.
  LayerSearch(std::shared_ptr<const SearchLayer> layer,
              const std::vector<WorkerProfile>& workers,
              const std::vector<std::vector<size_t>>& holders,
              SearchBudget* budget);

  double slowest() const;  // time of the slowest worker
  double ideal() const { return ideal_; }
  const std::vector<std::vector<size_t>>& holders() const { return holders_; }

  // Makes one random change that the limits allow, for better or worse. False:
  // none was found.
  bool Kick(RandomStream& random);
  // Becomes a copy of a search over the same layer.
  void TakeFrom(const LayerSearch& other);

  // Takes the best step. False: no step helps, or none fits the budget.
  bool Step();

 private:
  static constexpr size_t kNone = ~size_t{0};
  // A copy of `expert` goes; kNone: one more or one less.
  struct Change {
    size_t expert = kNone;
    size_t from = kNone, to = kNone;  // worker indices
  };
  // One change, or two that only make sense together. Millions are looked at,
  // so none is on the heap.
  class Changes {
   public:
    explicit Changes(Change one) : list_{one}, count_(1) {}
    Changes(Change one, Change other) : list_{one, other}, count_(2) {}
    const Change* begin() const { return list_.data(); }
    const Change* end() const { return list_.data() + count_; }

   private:
    std::array<Change, 2> list_;
    size_t count_;
  };
  struct Candidate {
    Changes changes;
    double peak = 0;   // slowest of the workers that it touches, afterwards
    int64_t cost = 0;  // bytes moved more than before
  };

  bool Has(size_t expert, size_t worker) const {
    return has_.Has(expert, worker);
  }
  double Share(size_t expert) const {
    return layer_->load[expert] / static_cast<double>(holders_[expert].size());
  }
  // Bounds that spare the sums of Peak, all of them but for rounding.
  struct Ends {
    double moved = 0, copied = 0;  // rows more on the worker it comes to
    double worst_moved = 0;        // the slowest worker without it
    // No change that moves or copies it away has a lower peak.
    double least_moved = 0, least_copied = 0;
    double relief = 0;  // what a copy takes off any other worker, at most
  };
  Ends EndsOf(size_t expert, size_t worst) const;
  // When `worker` gives up its copy, the slowest of those that take it over,
  // `worst` aside.
  double TakenOver(size_t expert, size_t worker, size_t worst);
  // False: a change after which some worker takes `time` is not wanted, however
  // good the rest of it is.
  bool Wanted(double time) const;
  // peak_least: Peak is no lower, but for rounding.
  void Consider(const Changes& changes, double peak_least);
  bool Allowed(const Changes& changes) const;
  bool AllowedFor(const Change& change) const;
  double Peak(const Changes& changes);
  int64_t Cost(const Changes& changes) const;
  void ProposeFor(size_t expert, size_t worst);
  void ProposePairs(size_t expert, size_t worst, size_t to, const Ends& ends);
  void ProposeThreeWay(size_t worst);
  void ProposeThirds(size_t expert, size_t worst, size_t to, const Ends& ends,
                     const std::vector<size_t>& lightest);
  void Apply(const Candidate& candidate);
  void Add(size_t expert, size_t worker);
  void Remove(size_t expert, size_t worker);

  const std::shared_ptr<const SearchLayer> layer_;
  const std::vector<WorkerProfile>& workers_;
  SearchBudget* const budget_;
  double ideal_ = 0, speed_least_ = 1;
  std::vector<size_t> domain_, class_;  // [workers], equal texts equal
  size_t domains_ = 0;                  // distinct failure domains
  int64_t copies_ = 0;
  std::vector<std::vector<size_t>> holders_;    // [experts]
  std::vector<std::vector<size_t>> on_worker_;  // [workers]
  CopySet has_;
  std::vector<double> time_;  // [workers]

  // Of the step being looked for.
  struct TakeOver {
    uint64_t step = 0;
    double most = 0, second = 0;  // after taking over
    size_t at = kNone;            // who is at most
  };
  uint64_t step_ = 0;
  std::vector<TakeOver> take_over_;  // [experts], of the step it names
  double worst_time_ = 0, second_time_ = 0;
  std::optional<Candidate> best_;
  std::vector<std::pair<size_t, double>> touched_;
  std::vector<size_t> touched_at_;  // [workers]: where in it, if it is there
};

}  // namespace trunkline::placement
