#include "dispatch/replica_assignment.h"

#include <algorithm>
#include <cstddef>

#include "common/check.h"

namespace trunkline::dispatch {
namespace {
constexpr uint32_t kUnreached = UINT32_MAX;
// A search takes some tens of microseconds at most.
constexpr size_t kSearchedExpertsMax = 12;
constexpr uint32_t kSearchNodesMax = 4096;
}  // namespace

void ReplicaAssignment::Begin(uint32_t workers) {
  candidates_.clear();
  candidates_begin_.assign(1, 0);
  routes_.clear();
  flexible_.clear();
  read_.assign(workers, 1);
  row_.assign(workers, 0);
  load_.assign(workers, 0);
  row_count_.assign(workers, 0);
  uniform_ = true;
}

void ReplicaAssignment::Begin(std::span<const WorkerCost> workers) {
  Begin(static_cast<uint32_t>(workers.size()));
  for (size_t w = 0; w < workers.size(); ++w) {
    read_[w] = workers[w].read;
    row_[w] = workers[w].row;
    if (read_[w] != 1 || row_[w] != 0) uniform_ = false;
  }
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
  load_[worker] += Cost(expert, worker);
  row_count_[worker] += routes_[expert];
}

void ReplicaAssignment::Take(uint32_t expert, uint32_t worker) {
  load_[worker] -= Cost(expert, worker);
  row_count_[worker] -= routes_[expert];
}

uint64_t ReplicaAssignment::slowest() const {
  return load_.empty() ? 0 : *std::max_element(load_.begin(), load_.end());
}

void ReplicaAssignment::GiveEachToItsBest() {
  // Heavy experts first, while there is most freedom to even them out.
  std::sort(flexible_.begin(), flexible_.end(), [&](uint32_t a, uint32_t b) {
    return routes_[a] != routes_[b] ? routes_[a] > routes_[b] : a < b;
  });
  for (uint32_t i : flexible_) {
    uint32_t best = CandidatesOf(i).front();
    for (uint32_t w : CandidatesOf(i)) {
      const uint64_t with_w = load_[w] + Cost(i, w);
      const uint64_t with_best = load_[best] + Cost(i, best);
      if (with_w != with_best ? with_w < with_best
                              : row_count_[w] < row_count_[best]) {
        best = w;
      }
    }
    Give(i, best);
  }
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
  GiveEachToItsBest();
  // The greedy choice can be wrong by more than one. While some slowest worker
  // can hand an expert along a chain of replicas so that nobody becomes as slow
  // as it was, do so; when none can and all experts cost the same, the largest
  // count is minimal. Each round leaves a smaller largest load or fewer workers
  // that have it, so this ends.
  const auto relieve_all = [this](uint64_t largest) {
    for (uint32_t w = 0; w < load_.size(); ++w) {
      if (load_[w] != largest) continue;
      if (!RelieveWorker(w) && (uniform_ || !SwapWithAnother(w))) return false;
    }
    return true;
  };
  while (relieve_all(slowest())) {
  }
  if (uniform_ || flexible_.size() > kSearchedExpertsMax) return;

  // Few experts: all choices whose slowest worker is faster than now.
  struct Search {
    ReplicaAssignment& of;
    uint64_t limit;
    std::vector<uint32_t> fastest;
    uint32_t nodes_left = kSearchNodesMax;

    // Every worker is below the limit here.
    void From(size_t depth) {
      if (nodes_left == 0) return;
      --nodes_left;
      if (depth == of.flexible_.size()) {
        limit = of.slowest();
        fastest = of.chosen_;
        return;
      }
      const uint32_t i = of.flexible_[depth];
      for (const uint32_t w : of.CandidatesOf(i)) {
        if (of.load_[w] + of.Cost(i, w) >= limit) continue;
        of.Give(i, w);
        From(depth + 1);
        of.Take(i, w);
      }
    }
  };
  Search search{*this, slowest(), chosen_};
  for (const uint32_t i : flexible_) Take(i, chosen_[i]);
  // What can not be moved may be the slowest already.
  if (slowest() < search.limit) search.From(0);
  for (const uint32_t i : flexible_) Give(i, search.fastest[i]);
}

// Whether a worker that gets `in` and gives `out` away is then below `limit`,
// or at least no slower than it was.
bool ReplicaAssignment::MayPassThrough(uint32_t worker, uint32_t in,
                                       uint32_t out, uint64_t limit) const {
  const uint64_t after = load_[worker] + Cost(in, worker) - Cost(out, worker);
  return after < limit || after <= load_[worker];
}

// Moves one expert off `worker` along the shortest chain after which everybody
// on it is faster than `worker` was.
bool ReplicaAssignment::RelieveWorker(uint32_t worker) {
  reached_by_expert_.assign(load_.size(), kUnreached);
  reached_from_.assign(load_.size(), kUnreached);
  queue_.assign(1, worker);
  reached_from_[worker] = worker;
  const uint64_t limit = load_[worker];
  for (size_t head = 0; head < queue_.size(); ++head) {
    const uint32_t from = queue_[head];
    for (uint32_t i : flexible_) {
      if (chosen_[i] != from) continue;
      if (from != worker &&
          !MayPassThrough(from, reached_by_expert_[from], i, limit))
        continue;
      for (uint32_t to : CandidatesOf(i)) {
        if (reached_from_[to] != kUnreached) continue;
        reached_from_[to] = from;
        reached_by_expert_[to] = i;
        queue_.push_back(to);
        if (load_[to] + Cost(i, to) >= limit) continue;
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

// Exchanges an expert of `worker` for one of another's, so that both are faster
// than `worker` was.
bool ReplicaAssignment::SwapWithAnother(uint32_t worker) {
  const uint64_t limit = load_[worker];
  const auto may_run_on = [&](uint32_t expert, uint32_t w) {
    const auto candidates = CandidatesOf(expert);
    return std::find(candidates.begin(), candidates.end(), w) !=
           candidates.end();
  };
  for (uint32_t mine : flexible_) {
    if (chosen_[mine] != worker) continue;
    for (uint32_t theirs : flexible_) {
      const uint32_t other = chosen_[theirs];
      if (other == worker || !may_run_on(mine, other) ||
          !may_run_on(theirs, worker))
        continue;
      if (limit + Cost(theirs, worker) - Cost(mine, worker) >= limit ||
          load_[other] + Cost(mine, other) - Cost(theirs, other) >= limit)
        continue;
      Take(mine, worker);
      Take(theirs, other);
      Give(mine, other);
      Give(theirs, worker);
      return true;
    }
  }
  return false;
}

}  // namespace trunkline::dispatch
