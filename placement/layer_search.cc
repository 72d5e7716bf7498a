#include "placement/layer_search.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <tuple>

namespace trunkline::placement {
namespace {

// A step has to win more than rounding noise, or steps could go in circles.
constexpr double kLeastWin = 1e-9;
constexpr size_t kThreeWayWorkers = 24;

}  // namespace

LayerSearch::LayerSearch(const SearchLayer& layer,
                         const std::vector<WorkerProfile>& workers,
                         const std::vector<std::vector<size_t>>& holders,
                         SearchBudget* budget)
    : layer_(layer),
      workers_(workers),
      budget_(budget),
      holders_(holders),
      on_worker_(workers.size()),
      has_(holders.size() * workers.size()),
      time_(workers.size()) {
  std::set<std::string> domains;
  double speed = 0;
  for (const WorkerProfile& profile : workers) {
    domains.insert(profile.failure_domain);
    speed += profile.speed;
  }
  domains_ = domains.size();
  ideal_ = std::accumulate(layer.load.begin(), layer.load.end(), 0.0) / speed;
  for (size_t e = 0; e < holders_.size(); ++e) {
    const double share =
        layer_.load[e] / static_cast<double>(holders_[e].size());
    for (const size_t w : holders_[e]) {
      has_[e * workers_.size() + w] = true;
      on_worker_[w].push_back(e);
      time_[w] += share / workers_[w].speed;
      ++copies_;
    }
  }
}

double LayerSearch::slowest() const {
  return *std::max_element(time_.begin(), time_.end());
}

bool LayerSearch::Step() {
  const auto worst = std::max_element(time_.begin(), time_.end());
  worst_time_ = *worst;
  second_time_ = 0;
  for (auto it = time_.begin(); it != time_.end(); ++it) {
    if (it != worst) second_time_ = std::max(second_time_, *it);
  }
  best_.reset();
  const size_t w = static_cast<size_t>(worst - time_.begin());
  for (const size_t expert : on_worker_[w]) ProposeFor(expert, w);
  if (!best_) ProposeThreeWay(w);
  if (!best_) return false;
  Apply(*best_);
  return true;
}

bool LayerSearch::Kick(RandomStream& random) {
  const size_t worst = static_cast<size_t>(
      std::max_element(time_.begin(), time_.end()) - time_.begin());
  constexpr int kDraws = 32;
  for (int draw = 0; draw < kDraws && !on_worker_[worst].empty(); ++draw) {
    const size_t to = random.NextBelow(workers_.size());
    const size_t expert =
        on_worker_[worst][random.NextBelow(on_worker_[worst].size())];
    if (to == worst || Has(expert, to) || on_worker_[to].empty()) continue;
    const size_t other =
        on_worker_[to][random.NextBelow(on_worker_[to].size())];
    Candidate candidate;
    if (random.NextBelow(2) == 0 && !Has(other, worst)) {
      candidate.changes = {{.expert = expert, .from = worst, .to = to},
                           {.expert = other, .from = to, .to = worst}};
    } else {
      candidate.changes = {{.expert = expert, .from = kNone, .to = to},
                           {.expert = other, .from = to, .to = kNone}};
    }
    if (!Allowed(candidate.changes)) continue;
    Peak(candidate.changes);  // lists the workers that it touches
    candidate.cost = Cost(candidate.changes);
    Apply(candidate);
    return true;
  }
  return false;
}

void LayerSearch::TakeFrom(const LayerSearch& other) {
  copies_ = other.copies_;
  holders_ = other.holders_;
  on_worker_ = other.on_worker_;
  has_ = other.has_;
  time_ = other.time_;
}

void LayerSearch::ProposeFor(size_t expert, size_t worst) {
  if (layer_.load[expert] <= 0) return;
  // Without it here, its other copies take the load.
  Consider({{.expert = expert, .from = worst, .to = kNone}});
  for (size_t to = 0; to < workers_.size(); ++to) {
    if (to == worst || time_[to] >= worst_time_ || Has(expert, to)) continue;
    Consider({{.expert = expert, .from = worst, .to = to}});
    Consider({{.expert = expert, .from = kNone, .to = to}});
    for (const size_t other : on_worker_[to]) {
      // A copy there makes room: it comes here, or its other copies do.
      if (!Has(other, worst)) {
        Consider({{.expert = expert, .from = worst, .to = to},
                  {.expert = other, .from = to, .to = worst}});
      }
      Consider({{.expert = expert, .from = kNone, .to = to},
                {.expert = other, .from = to, .to = kNone}});
      Consider({{.expert = expert, .from = worst, .to = to},
                {.expert = other, .from = to, .to = kNone}});
    }
  }
}

// Room at the second worker is made at the expense of a third. Only looked at
// when nothing simpler helps, and only among the workers with least to do: the
// number of such steps grows with the square of the workers.
void LayerSearch::ProposeThreeWay(size_t worst) {
  std::vector<size_t> lightest(workers_.size());
  std::iota(lightest.begin(), lightest.end(), 0);
  std::stable_sort(lightest.begin(), lightest.end(),
                   [&](size_t a, size_t b) { return time_[a] < time_[b]; });
  lightest.resize(std::min(lightest.size(), kThreeWayWorkers));
  for (const size_t expert : on_worker_[worst]) {
    if (layer_.load[expert] <= 0) continue;
    for (const size_t to : lightest) {
      if (to == worst || Has(expert, to)) continue;
      for (const size_t other : on_worker_[to]) {
        for (const size_t third : lightest) {
          if (third == to || third == worst || Has(other, third)) continue;
          Consider({{.expert = expert, .from = worst, .to = to},
                    {.expert = other, .from = to, .to = third}});
          Consider({{.expert = expert, .from = kNone, .to = to},
                    {.expert = other, .from = to, .to = third}});
        }
      }
    }
  }
}

void LayerSearch::Consider(std::vector<Change> changes) {
  const double peak = Peak(changes);
  if (peak >= worst_time_ * (1 - kLeastWin)) return;
  Candidate candidate{.changes = std::move(changes), .peak = peak, .cost = 0};
  candidate.cost = Cost(candidate.changes);
  if (best_) {
    // Below the second slowest worker a lower peak wins nothing now; fewer
    // bytes do.
    const auto key = [&](const Candidate& c) {
      return std::tuple(std::max(c.peak, second_time_), c.cost, c.peak);
    };
    if (key(candidate) >= key(*best_)) return;
  }
  if (Allowed(candidate.changes)) best_ = std::move(candidate);
}

double LayerSearch::Peak(const std::vector<Change>& changes) {
  touched_.clear();
  const auto add = [&](size_t worker, double rows) {
    const double time = rows / workers_[worker].speed;
    for (auto& [known, total] : touched_) {
      if (known != worker) continue;
      total += time;
      return;
    }
    touched_.emplace_back(worker, time_[worker] + time);
  };
  for (const Change& change : changes) {
    const double load = layer_.load[change.expert];
    const auto& holders = holders_[change.expert];
    const double before = load / static_cast<double>(holders.size());
    const size_t count = holders.size() - (change.from != kNone ? 1 : 0) +
                         (change.to != kNone ? 1 : 0);
    if (count == 0) return worst_time_;  // the expert would be lost
    const double after = load / static_cast<double>(count);
    for (const size_t holder : holders) {
      add(holder, holder == change.from ? -before : after - before);
    }
    if (change.to != kNone) add(change.to, after);
  }
  double peak = 0;
  for (const auto& [worker, time] : touched_) peak = std::max(peak, time);
  return peak;
}

int64_t LayerSearch::Cost(const std::vector<Change>& changes) const {
  const int64_t bytes = static_cast<int64_t>(layer_.expert_bytes);
  int64_t cost = 0;
  for (const Change& change : changes) {
    const auto free = [&](size_t worker) {
      return layer_.current.count({change.expert, worker}) != 0;
    };
    if (change.to != kNone && !free(change.to)) cost += bytes;
    // A copy that the search itself put there was counted: it need not go.
    if (change.from != kNone && !free(change.from)) cost -= bytes;
  }
  return cost;
}

bool LayerSearch::Allowed(const std::vector<Change>& changes) const {
  const int64_t moved =
      static_cast<int64_t>(budget_->moved_bytes) + Cost(changes);
  if (moved > 0 && static_cast<uint64_t>(moved) > budget_->moved_bytes_max) {
    return false;
  }
  int64_t copies = copies_;
  for (const Change& change : changes) {
    if (!AllowedFor(change)) return false;
    copies += (change.to != kNone ? 1 : 0) - (change.from != kNone ? 1 : 0);
  }
  if (copies > std::max(layer_.copies_max, copies_)) return false;
  // Counts and bytes at each end, with all changes together.
  for (const Change& change : changes) {
    if (change.to == kNone) continue;
    const size_t to = change.to;
    int64_t count = static_cast<int64_t>(on_worker_[to].size());
    uint64_t final_bytes = budget_->final_bytes[to];
    uint64_t staged_bytes = budget_->staged_bytes[to];
    for (const Change& other : changes) {
      const bool held = layer_.held.count({other.expert, to}) != 0;
      if (other.from == to) {
        --count;
        final_bytes -= layer_.expert_bytes;
        if (!held) staged_bytes -= layer_.expert_bytes;
      }
      if (other.to == to) {
        ++count;
        final_bytes += layer_.expert_bytes;
        if (!held) staged_bytes += layer_.expert_bytes;
      }
    }
    if (count > std::max(layer_.worker_copies_max,
                         static_cast<int64_t>(on_worker_[to].size()))) {
      return false;
    }
    const uint64_t limit = workers_[to].memory_bytes;
    if (limit != 0 && (final_bytes > limit || staged_bytes > limit)) {
      return false;
    }
  }
  return true;
}

bool LayerSearch::AllowedFor(const Change& change) const {
  const auto& holders = holders_[change.expert];
  if (change.to == kNone) {
    return static_cast<int64_t>(holders.size()) > layer_.replicas_min;
  }
  const WorkerProfile& to = workers_[change.to];
  std::set<std::string> used;
  for (const size_t holder : holders) {
    if (holder == change.from) continue;
    if (workers_[holder].numerics_class != to.numerics_class) return false;
    used.insert(workers_[holder].failure_domain);
  }
  // Two copies share a failure domain only when there is no other.
  return used.count(to.failure_domain) == 0 || used.size() >= domains_;
}

void LayerSearch::Apply(const Candidate& candidate) {
  for (const Change& change : candidate.changes) {
    if (change.to != kNone) Add(change.expert, change.to);
    if (change.from != kNone) Remove(change.expert, change.from);
  }
  budget_->moved_bytes = static_cast<uint64_t>(
      static_cast<int64_t>(budget_->moved_bytes) + candidate.cost);
  // Sums of differences drift; the few workers concerned are added up anew.
  for (const auto& change : candidate.changes) {
    for (const size_t holder : holders_[change.expert]) {
      touched_.emplace_back(holder, 0);
    }
    if (change.from != kNone) touched_.emplace_back(change.from, 0);
  }
  for (const auto& [worker, unused] : touched_) {
    double time = 0;
    for (const size_t e : on_worker_[worker]) {
      time += layer_.load[e] / static_cast<double>(holders_[e].size());
    }
    time_[worker] = time / workers_[worker].speed;
  }
}

void LayerSearch::Add(size_t expert, size_t worker) {
  has_[expert * workers_.size() + worker] = true;
  holders_[expert].push_back(worker);
  on_worker_[worker].push_back(expert);
  ++copies_;
  budget_->final_bytes[worker] += layer_.expert_bytes;
  if (layer_.held.count({expert, worker}) == 0) {
    budget_->staged_bytes[worker] += layer_.expert_bytes;
  }
}

void LayerSearch::Remove(size_t expert, size_t worker) {
  has_[expert * workers_.size() + worker] = false;
  std::erase(holders_[expert], worker);
  std::erase(on_worker_[worker], expert);
  --copies_;
  budget_->final_bytes[worker] -= layer_.expert_bytes;
  if (layer_.held.count({expert, worker}) == 0) {
    budget_->staged_bytes[worker] -= layer_.expert_bytes;
  }
}

}  // namespace trunkline::placement
