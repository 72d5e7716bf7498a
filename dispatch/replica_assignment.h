#pragma once

// Which live replica serves each chosen expert of one layer of one step. Pure
// and deterministic: equal inputs give equal assignments.
//
// The slowest worker's time is made small. A worker takes so much for each
// distinct expert it has to read from memory and so much for each row
// (worker_costs.h): while reads are what costs, as at small batches, that evens
// out distinct experts; where rows cost, rows. With reads alone and all workers
// alike the result is exact: no other assignment has a smaller largest number
// of experts. With measured costs few experts (a decode step) are searched in
// full; many get a greedy choice that no chain of moves and no swap improves.
// Of equal choices the worker with fewer rows wins, then the lower id.

#include <cstdint>
#include <span>
#include <vector>

#include "dispatch/worker_costs.h"

namespace trunkline::dispatch {

class ReplicaAssignment {
 public:
  // Workers are dense indices 0..workers-1, in ascending worker id. Forgets
  // what was there; keeps the memory. All workers alike, reads alone.
  void Begin(uint32_t workers);
  // The same with a cost for each worker.
  void Begin(std::span<const WorkerCost> workers);
  // One chosen expert with its number of routes and its live candidates,
  // ascending, at least one. The index of the expert is the call's number.
  void AddExpert(uint32_t routes, std::span<const uint32_t> candidates);
  // Decides all.
  void Solve();
  // The worker of expert i, after Solve.
  uint32_t worker_of(uint32_t i) const { return chosen_[i]; }
  // What the slowest worker takes, in the costs' unit.
  uint64_t slowest() const;

 private:
  std::span<const uint32_t> CandidatesOf(uint32_t i) const {
    return std::span<const uint32_t>(candidates_)
        .subspan(candidates_begin_[i],
                 candidates_begin_[i + 1] - candidates_begin_[i]);
  }
  uint64_t Cost(uint32_t expert, uint32_t worker) const {
    return read_[worker] + routes_[expert] * row_[worker];
  }
  void Give(uint32_t expert, uint32_t worker);
  void Take(uint32_t expert, uint32_t worker);
  void GiveEachToItsBest();
  bool RelieveWorker(uint32_t worker);
  bool MayPassThrough(uint32_t worker, uint32_t in, uint32_t out,
                      uint64_t limit) const;
  bool SwapWithAnother(uint32_t worker);

  std::vector<uint32_t> candidates_;        // of all experts, end to end
  std::vector<uint32_t> candidates_begin_;  // [experts + 1]
  std::vector<uint32_t> routes_;            // [experts]
  std::vector<uint32_t> chosen_;            // [experts]
  std::vector<uint32_t> flexible_;          // experts with several candidates
  std::vector<uint64_t> read_, row_;        // [workers]
  std::vector<uint64_t> load_;              // [workers] cost of what it has
  std::vector<uint64_t> row_count_;         // [workers]
  bool uniform_ = true;                     // every expert costs 1 everywhere
  // Breadth-first search from a loaded worker: how each worker was reached.
  std::vector<uint32_t> reached_by_expert_;
  std::vector<uint32_t> reached_from_;
  std::vector<uint32_t> queue_;
};

}  // namespace trunkline::dispatch
