#include "dispatch/replica_assignment.h"

#include <algorithm>
#include <cstddef>

#include "common/check.h"

namespace trunkline::dispatch {
namespace {
constexpr uint32_t kUnreached = UINT32_MAX;
}

void ReplicaAssignment::Begin(uint32_t workers) {
  candidates_.clear();
  candidates_begin_.assign(1, 0);
  routes_.clear();
  flexible_.clear();
  expert_count_.assign(workers, 0);
  row_count_.assign(workers, 0);
}

void ReplicaAssignment::AddExpert(uint32_t routes,
                                  std::span<const uint32_t> candidates) {
  TL_CHECK(!candidates.empty());
  candidates_.insert(candidates_.end(), candidates.begin(), candidates.end());
  candidates_begin_.push_back(static_cast<uint32_t>(candidates_.size()));
  routes_.push_back(routes);
}

void ReplicaAssignment::Give(uint32_t expert, uint32_t worker) {
  chosen_[expert] = worker;
  ++expert_count_[worker];
  row_count_[worker] += routes_[expert];
}

void ReplicaAssignment::Take(uint32_t expert, uint32_t worker) {
  --expert_count_[worker];
  row_count_[worker] -= routes_[expert];
}

void ReplicaAssignment::Solve() {
  const auto experts = static_cast<uint32_t>(routes_.size());
  chosen_.assign(experts, 0);
  for (uint32_t i = 0; i < experts; ++i) {
    const auto candidates = CandidatesOf(i);
    if (candidates.size() == 1) {
      Give(i, candidates.front());
    } else {
      flexible_.push_back(i);
    }
  }
  if (flexible_.empty()) return;
  // Heavy experts first, while there is most freedom to even out the rows.
  std::sort(flexible_.begin(), flexible_.end(), [&](uint32_t a, uint32_t b) {
    return routes_[a] != routes_[b] ? routes_[a] > routes_[b] : a < b;
  });
  for (uint32_t i : flexible_) {
    uint32_t best = CandidatesOf(i).front();
    for (uint32_t w : CandidatesOf(i)) {
      if (expert_count_[w] != expert_count_[best]
              ? expert_count_[w] < expert_count_[best]
              : row_count_[w] < row_count_[best]) {
        best = w;
      }
    }
    Give(i, best);
  }
  // The greedy choice can be wrong by more than one. While some most loaded
  // worker can hand an expert along a chain of replicas to a worker that has
  // two fewer, do so; when none can, the largest count is minimal.
  bool improved = true;
  while (improved) {
    improved = false;
    const uint32_t largest =
        *std::max_element(expert_count_.begin(), expert_count_.end());
    for (uint32_t w = 0; w < expert_count_.size(); ++w) {
      if (expert_count_[w] != largest) continue;
      if (!RelieveWorker(w)) return;
      improved = true;
    }
  }
}

// Moves one expert off `worker` along the shortest chain that ends at a worker
// with at least two experts fewer.
bool ReplicaAssignment::RelieveWorker(uint32_t worker) {
  reached_by_expert_.assign(expert_count_.size(), kUnreached);
  reached_from_.assign(expert_count_.size(), kUnreached);
  queue_.assign(1, worker);
  reached_from_[worker] = worker;
  for (size_t head = 0; head < queue_.size(); ++head) {
    const uint32_t from = queue_[head];
    for (uint32_t i : flexible_) {
      if (chosen_[i] != from) continue;
      for (uint32_t to : CandidatesOf(i)) {
        if (reached_from_[to] != kUnreached) continue;
        reached_from_[to] = from;
        reached_by_expert_[to] = i;
        queue_.push_back(to);
        if (expert_count_[to] + 2 > expert_count_[worker]) continue;
        for (uint32_t at = to; at != worker; at = reached_from_[at]) {
          Take(reached_by_expert_[at], reached_from_[at]);
          Give(reached_by_expert_[at], at);
        }
        return true;
      }
    }
  }
  return false;
}

}  // namespace trunkline::dispatch
