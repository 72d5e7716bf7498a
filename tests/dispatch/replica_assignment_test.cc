#include "dispatch/replica_assignment.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "common/random.h"

namespace trunkline::dispatch {
namespace {

struct Problem {
  std::vector<WorkerCost> workers;
  struct Expert {
    uint32_t routes;
    std::vector<uint32_t> candidates;
  };
  std::vector<Expert> experts;
};

Problem RandomProblem(RandomStream& random, uint64_t read_most,
                      uint64_t row_most) {
  Problem problem;
  const auto workers = static_cast<uint32_t>(2 + random.NextBelow(3));
  for (uint32_t w = 0; w < workers; ++w) {
    problem.workers.push_back({.worker = WorkerId(w),
                               .read = 1 + random.NextBelow(read_most),
                               .row = random.NextBelow(row_most + 1)});
  }
  for (uint64_t e = 1 + random.NextBelow(7); e-- > 0;) {
    Problem::Expert expert;
    expert.routes = static_cast<uint32_t>(1 + random.NextBelow(20));
    for (uint32_t w = 0; w < workers; ++w)
      if (random.NextBelow(2) == 0) expert.candidates.push_back(w);
    if (expert.candidates.empty())
      expert.candidates.push_back(
          static_cast<uint32_t>(random.NextBelow(workers)));
    problem.experts.push_back(std::move(expert));
  }
  return problem;
}

uint64_t SlowestOf(const Problem& problem, const std::vector<uint32_t>& on) {
  std::vector<uint64_t> load(problem.workers.size(), 0);
  for (size_t e = 0; e < on.size(); ++e) {
    const WorkerCost& cost = problem.workers[on[e]];
    load[on[e]] += cost.read + cost.row * problem.experts[e].routes;
  }
  return *std::max_element(load.begin(), load.end());
}

uint64_t BestOf(const Problem& problem, std::vector<uint32_t>& on) {
  if (on.size() == problem.experts.size()) return SlowestOf(problem, on);
  uint64_t best = UINT64_MAX;
  for (const uint32_t w : problem.experts[on.size()].candidates) {
    on.push_back(w);
    best = std::min(best, BestOf(problem, on));
    on.pop_back();
  }
  return best;
}

std::vector<uint32_t> Solve(const Problem& problem, uint64_t* slowest) {
  ReplicaAssignment assignment;
  assignment.Begin(problem.workers);
  for (const Problem::Expert& expert : problem.experts)
    assignment.AddExpert(expert.routes, expert.candidates);
  assignment.Solve();
  std::vector<uint32_t> on;
  for (uint32_t e = 0; e < problem.experts.size(); ++e)
    on.push_back(assignment.worker_of(e));
  *slowest = assignment.slowest();
  return on;
}

// Premise of all: a chosen worker is a candidate, and the cost is what it says.
void CheckSolution(const Problem& problem, const std::vector<uint32_t>& on,
                   uint64_t slowest) {
  for (size_t e = 0; e < on.size(); ++e) {
    const auto& candidates = problem.experts[e].candidates;
    ASSERT_NE(std::find(candidates.begin(), candidates.end(), on[e]),
              candidates.end());
  }
  ASSERT_EQ(SlowestOf(problem, on), slowest);
}

TEST(ReplicaAssignment, WithReadsAloneNoChoiceHasASmallerLargestCount) {
  RandomStream random(1);
  for (int round = 0; round < 2000; ++round) {
    const Problem problem = RandomProblem(random, 1, 0);
    uint64_t slowest = 0;
    const std::vector<uint32_t> on = Solve(problem, &slowest);
    CheckSolution(problem, on, slowest);
    std::vector<uint32_t> none;
    ASSERT_EQ(slowest, BestOf(problem, none)) << "round " << round;
  }
}

// Unlike machines and unequal experts.
TEST(ReplicaAssignment, WithMeasuredCostsAndFewExpertsNoChoiceIsFaster) {
  RandomStream random(2);
  for (int round = 0; round < 3000; ++round) {
    const Problem problem = RandomProblem(random, 100, 20);
    uint64_t slowest = 0;
    const std::vector<uint32_t> on = Solve(problem, &slowest);
    CheckSolution(problem, on, slowest);
    std::vector<uint32_t> none;
    ASSERT_EQ(slowest, BestOf(problem, none)) << "round " << round;
  }
}

// The problem is hard in general: with many experts the claim is that chance
// finds next to nothing that it missed.
TEST(ReplicaAssignment, WithManyExpertsNoRandomChoiceIsFasterByATwentieth) {
  RandomStream random(3);
  for (int round = 0; round < 50; ++round) {
    Problem problem = RandomProblem(random, 100, 20);
    while (problem.experts.size() < 40) {
      const Problem more = RandomProblem(random, 1, 0);
      for (Problem::Expert expert : more.experts) {
        std::erase_if(expert.candidates,
                      [&](uint32_t w) { return w >= problem.workers.size(); });
        if (!expert.candidates.empty()) problem.experts.push_back(expert);
      }
    }
    uint64_t slowest = 0;
    const std::vector<uint32_t> on = Solve(problem, &slowest);
    CheckSolution(problem, on, slowest);
    EXPECT_EQ(Solve(problem, &slowest), on) << "equal inputs, equal choices";
    for (int trial = 0; trial < 500; ++trial) {
      std::vector<uint32_t> other;
      for (const Problem::Expert& expert : problem.experts)
        other.push_back(
            expert.candidates[random.NextBelow(expert.candidates.size())]);
      const uint64_t chance = SlowestOf(problem, other);
      ASSERT_LE(slowest, chance + chance / 20) << "round " << round;
    }
  }
}

// Four experts on two workers, one of them with most rows. While reads count it
// is two and two; where rows count, the heavy one is alone.
TEST(ReplicaAssignment, CrossesFromCountingExpertsToCountingRows) {
  Problem problem;
  problem.experts = {{30, {0, 1}}, {10, {0, 1}}, {10, {0, 1}}, {10, {0, 1}}};
  const auto alone = [&](uint64_t read, uint64_t row) {
    problem.workers = {{WorkerId(0), read, row}, {WorkerId(1), read, row}};
    uint64_t slowest = 0;
    const std::vector<uint32_t> on = Solve(problem, &slowest);
    return std::count(on.begin(), on.end(), on[0]) == 1;
  };
  EXPECT_FALSE(alone(1000, 1));
  EXPECT_TRUE(alone(1, 1000));
}

TEST(ReplicaAssignment, ASlowWorkerGetsLess) {
  Problem problem;
  for (int e = 0; e < 9; ++e) problem.experts.push_back({1, {0, 1}});
  problem.workers = {{WorkerId(0), 100, 0}, {WorkerId(1), 200, 0}};
  uint64_t slowest = 0;
  const std::vector<uint32_t> on = Solve(problem, &slowest);
  EXPECT_EQ(std::count(on.begin(), on.end(), 0u), 6);
  EXPECT_EQ(slowest, 600u);
}

TEST(WorkerCosts, AnUnmeasuredWorkerCostsWhatTheOthersDoOnAverage) {
  const std::vector<MeasuredCost> measured = {
      {WorkerId(7), 2e-6, 4e-9}, {WorkerId(3), 0, 0}, {WorkerId(5), 4e-6, 0}};
  EXPECT_EQ(CostsFrom(measured),
            (std::vector<WorkerCost>{{WorkerId(3), 3000000, 2000},
                                     {WorkerId(5), 4000000, 0},
                                     {WorkerId(7), 2000000, 4000}}));
  EXPECT_EQ(CostsFrom(std::vector<MeasuredCost>{{WorkerId(3), 0, 0}}),
            (std::vector<WorkerCost>{{WorkerId(3), 1, 0}}));
}

// Any number that a worker may report keeps sums of a step within 64 bits.
TEST(WorkerCosts, AbsurdMeasurementsAreBounded) {
  const std::vector<MeasuredCost> measured = {{WorkerId(1), 1e300, 1e300}};
  const WorkerCost cost = CostsFrom(measured)[0];
  EXPECT_LE(cost.read, uint64_t{1000000000000});
  EXPECT_LE(cost.row, uint64_t{1000000000000});
}

}  // namespace
}  // namespace trunkline::dispatch
