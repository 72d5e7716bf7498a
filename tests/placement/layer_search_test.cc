// Each step is the best of all that there are, found without trying them all.

#include "placement/layer_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

namespace trunkline::placement {
namespace {

using Holders = std::vector<std::vector<size_t>>;
constexpr size_t kNone = ~size_t{0};

struct Move {
  size_t expert, from, to;
};

// One layer and its limits, and the plain way to say what a change leads to.
struct Layer {
  SearchLayer fixed;
  std::vector<WorkerProfile> workers;
  Holders holders;

  std::vector<double> Times() const {
    std::vector<double> times(workers.size());
    for (size_t e = 0; e < holders.size(); ++e) {
      for (const size_t w : holders[e]) {
        times[w] += fixed.load[e] / static_cast<double>(holders[e].size()) /
                    workers[w].speed;
      }
    }
    return times;
  }
  double Slowest() const {
    const std::vector<double> times = Times();
    return *std::max_element(times.begin(), times.end());
  }
  bool Has(size_t expert, size_t worker) const {
    return std::count(holders[expert].begin(), holders[expert].end(), worker) !=
           0;
  }
  // The slowest worker after the moves; infinite: they are not allowed.
  double After(const std::vector<Move>& moves) const {
    Layer next = *this;
    for (const Move& move : moves) {
      auto& list = next.holders[move.expert];
      if (move.from != kNone) std::erase(list, move.from);
      if (move.to != kNone) {
        if (next.Has(move.expert, move.to))
          return std::numeric_limits<double>::infinity();
        list.push_back(move.to);
      }
      if (list.empty()) return std::numeric_limits<double>::infinity();
    }
    std::vector<int64_t> copies(workers.size());
    int64_t all = 0;
    for (const auto& list : next.holders) {
      for (const size_t w : list) {
        ++copies[w];
        ++all;
      }
    }
    const bool fits = all <= fixed.copies_max &&
                      *std::max_element(copies.begin(), copies.end()) <=
                          fixed.worker_copies_max;
    return fits ? next.Slowest() : std::numeric_limits<double>::infinity();
  }
};

// The second slowest worker, which the slowest can fall to at best: below it a
// step is as good as another, and what it moves decides.
double Second(const Layer& layer) {
  std::vector<double> times = layer.Times();
  std::sort(times.begin(), times.end());
  return times[times.size() - 2];
}

// The slowest worker after the best step: one copy moved, added or dropped, or
// two of which the second makes room for the first; three workers take part
// only when nothing simpler helps.
double BestStep(const Layer& layer) {
  const std::vector<double> times = layer.Times();
  const size_t worst = static_cast<size_t>(
      std::max_element(times.begin(), times.end()) - times.begin());
  const size_t count = layer.workers.size();
  double two = layer.Slowest(), three = two;
  for (size_t e = 0; e < layer.holders.size(); ++e) {
    if (!layer.Has(e, worst)) continue;
    two = std::min(two, layer.After({{e, worst, kNone}}));
    for (size_t to = 0; to < count; ++to) {
      if (layer.Has(e, to) || times[to] >= times[worst]) continue;
      for (const size_t from : {worst, kNone}) {
        two = std::min(two, layer.After({{e, from, to}}));
        for (size_t other = 0; other < layer.holders.size(); ++other) {
          if (!layer.Has(other, to)) continue;
          two = std::min(two, layer.After({{e, from, to}, {other, to, kNone}}));
          if (from == worst) {
            two =
                std::min(two, layer.After({{e, from, to}, {other, to, worst}}));
          }
          for (size_t third = 0; third < count; ++third) {
            if (third == to || third == worst) continue;
            three = std::min(three,
                             layer.After({{e, from, to}, {other, to, third}}));
          }
        }
      }
    }
  }
  const bool helps = two < layer.Slowest() * (1 - 1e-9);
  return helps ? two : three;
}

Layer RandomLayer(RandomStream& random) {
  Layer layer;
  const size_t workers = 2 + random.NextBelow(5);
  const size_t experts = workers + random.NextBelow(12);
  const bool alike = random.NextBelow(2) == 0;
  for (size_t w = 0; w < workers; ++w) {
    layer.workers.push_back({.worker = WorkerId(static_cast<uint32_t>(w)),
                             .memory_bytes = 0,
                             .speed = alike ? 1.0 : 0.5 + random.NextUnit(),
                             .failure_domain = std::to_string(w),
                             .numerics_class = "portable"});
  }
  std::vector<int64_t> copies(workers);
  for (size_t e = 0; e < experts; ++e) {
    // Few hot ones, some without any rows.
    const double rows = static_cast<double>(random.NextBelow(200));
    layer.fixed.load.push_back(random.NextBelow(6) == 0 ? rows * 20 : rows);
    std::vector<size_t> list;
    for (size_t tries = 1 + random.NextBelow(3); tries > 0; --tries) {
      const size_t w = random.NextBelow(workers);
      if (std::count(list.begin(), list.end(), w) != 0) continue;
      list.push_back(w);
      ++copies[w];
      ++layer.fixed.copies_max;
    }
    layer.holders.push_back(std::move(list));
  }
  layer.fixed.copies_max += static_cast<int64_t>(random.NextBelow(3));
  layer.fixed.worker_copies_max =
      *std::max_element(copies.begin(), copies.end()) +
      static_cast<int64_t>(random.NextBelow(2));
  layer.fixed.expert_bytes = 1;
  layer.fixed.current = CopySet(experts, workers);
  for (size_t e = 0; e < experts; ++e) {
    for (const size_t w : layer.holders[e]) layer.fixed.current.Insert(e, w);
  }
  layer.fixed.held = layer.fixed.current;
  return layer;
}

TEST(LayerSearch, EveryStepIsTheBestThatTryingThemAllFinds) {
  RandomStream random(20261130);
  int steps = 0, ends = 0;
  for (int trial = 0; trial < 600; ++trial) {
    Layer layer = RandomLayer(random);
    SearchBudget budget;
    budget.final_bytes.resize(layer.workers.size());
    budget.staged_bytes.resize(layer.workers.size());
    budget.moved_bytes_max = std::numeric_limits<uint64_t>::max();
    for (const auto& list : layer.holders) {
      for (const size_t w : list) {
        ++budget.final_bytes[w];
        ++budget.staged_bytes[w];
      }
    }
    LayerSearch search(std::make_shared<const SearchLayer>(layer.fixed),
                       layer.workers, layer.holders, &budget);
    for (int step = 0; step < 40; ++step) {
      const double before = layer.Slowest();
      const double second = Second(layer);
      const double best = std::max(second, BestStep(layer));
      ASSERT_NEAR(search.slowest(), before, 1e-9 * before);
      if (!search.Step()) {
        EXPECT_GE(best, before * (1 - 2e-9)) << "trial " << trial;
        ++ends;
        break;
      }
      layer.holders = search.holders();
      ASSERT_LE(layer.Slowest(), before) << "trial " << trial;
      ASSERT_NEAR(std::max(second, layer.Slowest()), best, 1e-9 * before)
          << "trial " << trial;
      ++steps;
    }
  }
  EXPECT_GT(steps, 1000);
  EXPECT_GT(ends, 500);
}

}  // namespace
}  // namespace trunkline::placement
