#pragma once

// Which live replica serves each chosen expert of one layer of one step. Pure
// and deterministic: equal inputs give equal assignments.
//
// At small batches a worker's time is set by the number of distinct experts it
// has to read from memory, so the largest such number is made as small as it
// can be (exactly: no other assignment has a smaller one). Among the choices
// on the way the worker with fewer rows wins, then the lower id.

#include <cstdint>
#include <span>
#include <vector>

namespace trunkline::dispatch {

class ReplicaAssignment {
 public:
  // Workers are dense indices 0..workers-1, in ascending worker id. Forgets
  // what was there; keeps the memory.
  void Begin(uint32_t workers);
  // One chosen expert with its number of routes and its live candidates,
  // ascending, at least one. The index of the expert is the call's number.
  void AddExpert(uint32_t routes, std::span<const uint32_t> candidates);
  // Decides all.
  void Solve();
  // The worker of expert i, after Solve.
  uint32_t worker_of(uint32_t i) const { return chosen_[i]; }

 private:
  std::span<const uint32_t> CandidatesOf(uint32_t i) const {
    return std::span<const uint32_t>(candidates_)
        .subspan(candidates_begin_[i],
                 candidates_begin_[i + 1] - candidates_begin_[i]);
  }
  void Give(uint32_t expert, uint32_t worker);
  void Take(uint32_t expert, uint32_t worker);
  bool RelieveWorker(uint32_t worker);

  std::vector<uint32_t> candidates_;        // of all experts, end to end
  std::vector<uint32_t> candidates_begin_;  // [experts + 1]
  std::vector<uint32_t> routes_;            // [experts]
  std::vector<uint32_t> chosen_;            // [experts]
  std::vector<uint32_t> flexible_;          // experts with several candidates
  std::vector<uint32_t> expert_count_;      // [workers]
  std::vector<uint64_t> row_count_;         // [workers]
  // Breadth-first search from a loaded worker: how each worker was reached.
  std::vector<uint32_t> reached_by_expert_;
  std::vector<uint32_t> reached_from_;
  std::vector<uint32_t> queue_;
};

}  // namespace trunkline::dispatch
