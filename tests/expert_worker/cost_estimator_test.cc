#include "expert_worker/cost_estimator.h"

#include <gtest/gtest.h>

#include "common/random.h"

namespace trunkline::expert {
namespace {

// Batches of a machine with these costs, up to `noise` of it more or less.
void Feed(CostEstimator* estimator, RandomStream& random, double read,
          double row, double noise, int batches, uint64_t rows_per_expert_max) {
  for (int i = 0; i < batches; ++i) {
    const uint64_t experts = 1 + random.NextBelow(16);
    const uint64_t routes =
        experts * (1 + random.NextBelow(rows_per_expert_max));
    const double exact =
        static_cast<double>(experts) * read + static_cast<double>(routes) * row;
    estimator->Add(
        experts, routes,
        absl::Seconds(exact * (1 + noise * (2 * random.NextUnit() - 1))));
  }
}

TEST(CostEstimator, IsUnknownUntilEnoughIsSeen) {
  CostEstimator estimator;
  EXPECT_FALSE(estimator.costs().known());
  estimator.Add(3, 5, absl::Milliseconds(1));
  EXPECT_FALSE(estimator.costs().known());
}

TEST(CostEstimator, TellsReadingFromArithmetic) {
  RandomStream random(1);
  CostEstimator estimator;
  Feed(&estimator, random, 200e-6, 10e-6, 0.1, 1000, 64);
  EXPECT_NEAR(estimator.costs().read_seconds, 200e-6, 20e-6);
  EXPECT_NEAR(estimator.costs().row_seconds, 10e-6, 1e-6);
}

// Decoding alone: one row an expert says nothing of what more rows would cost.
TEST(CostEstimator, GivesAllToReadingWhenBatchesAreAlike) {
  RandomStream random(2);
  CostEstimator estimator;
  Feed(&estimator, random, 200e-6, 10e-6, 0.0, 200, 1);
  EXPECT_NEAR(estimator.costs().read_seconds, 210e-6, 1e-6);
  EXPECT_EQ(estimator.costs().row_seconds, 0);
}

TEST(CostEstimator, FollowsAMachineThatGetsSlower) {
  RandomStream random(3);
  CostEstimator estimator;
  Feed(&estimator, random, 100e-6, 5e-6, 0.1, 1000, 64);
  Feed(&estimator, random, 300e-6, 15e-6, 0.1, 3000, 64);
  EXPECT_NEAR(estimator.costs().read_seconds, 300e-6, 40e-6);
  EXPECT_NEAR(estimator.costs().row_seconds, 15e-6, 2e-6);
}

TEST(CostEstimator, NoMeasurementMakesACostNegativeOrNotANumber) {
  RandomStream random(4);
  for (int round = 0; round < 200; ++round) {
    CostEstimator estimator;
    for (int i = 0; i < 40; ++i) {
      estimator.Add(
          random.NextBelow(3), random.NextBelow(50),
          absl::Nanoseconds(static_cast<int64_t>(random.NextBelow(100000))));
    }
    EXPECT_GE(estimator.costs().read_seconds, 0);
    EXPECT_GE(estimator.costs().row_seconds, 0);
  }
}

}  // namespace
}  // namespace trunkline::expert
