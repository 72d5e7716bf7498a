#pragma once

// Improves the placement of one layer step by step: each step relieves the
// slowest worker by moving, swapping, adding or replacing one copy. Pure and
// deterministic. Used by balance.cc.

#include <cstdint>
#include <optional>
#include <set>
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

// Fixed data of one layer's search.
struct SearchLayer {
  std::vector<double> load;  // [experts]
  uint64_t expert_bytes = 0;
  int64_t copies_max = 0;         // over all workers
  int64_t worker_copies_max = 0;  // per worker
  int64_t replicas_min = 1;       // copies that every expert keeps
  // (expert, worker index) that cost no load, and that use memory anyway.
  std::set<std::pair<size_t, size_t>> current, held;
};

class LayerSearch {
 public:
  // workers and budget outlive the search. holders: [experts] -> worker
  // indices, distinct.
  LayerSearch(const SearchLayer& layer,
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
  // One copy less of `drop` and one more of `add` per end; kNone: nothing.
  struct Change {
    size_t expert;
    size_t from, to;  // worker indices or kNone
  };
  static constexpr size_t kNone = ~size_t{0};
  struct Candidate {
    std::vector<Change> changes;
    double peak = 0;   // slowest of the workers that it touches, afterwards
    int64_t cost = 0;  // bytes moved more than before
  };

  bool Has(size_t expert, size_t worker) const {
    return has_[expert * workers_.size() + worker];
  }
  void Consider(std::vector<Change> changes);
  bool Allowed(const std::vector<Change>& changes) const;
  bool AllowedFor(const Change& change) const;
  double Peak(const std::vector<Change>& changes);
  int64_t Cost(const std::vector<Change>& changes) const;
  void ProposeFor(size_t expert, size_t worst);
  void ProposeThreeWay(size_t worst);
  void Apply(const Candidate& candidate);
  void Add(size_t expert, size_t worker);
  void Remove(size_t expert, size_t worker);

  const SearchLayer layer_;
  const std::vector<WorkerProfile>& workers_;
  SearchBudget* const budget_;
  double ideal_ = 0;
  size_t domains_ = 0;  // distinct failure domains
  int64_t copies_ = 0;
  std::vector<std::vector<size_t>> holders_;    // [experts]
  std::vector<std::vector<size_t>> on_worker_;  // [workers]
  std::vector<bool> has_;                       // [experts * workers]
  std::vector<double> time_;                    // [workers]

  // Of the step being looked for.
  double worst_time_ = 0, second_time_ = 0;
  std::optional<Candidate> best_;
  std::vector<std::pair<size_t, double>> touched_;
};

}  // namespace trunkline::placement
