// What grows with the number of workers, counted and not timed.

#include "sim/scale.h"

#include <gtest/gtest.h>

#include "common/log.h"
#include "sim/sim_cluster.h"

namespace trunkline::sim {
namespace {

// A step's plan looks at every live worker once and at every route once.
TEST(Scale, ATrunksPlanGrowsNoFasterThanTheNumberOfWorkers) {
  for (const ScaleShape& shape : NemotronShapes()) {
    uint64_t before = 0;
    for (const int workers : {8, 64, 512, 4096}) {
      const auto row = ComputeScale(shape, workers, 64, ScaleCosts());
      ASSERT_TRUE(row.ok()) << row.status();
      if (before != 0) {
        EXPECT_LE(row->plan_operations, before * 8);
      }
      before = row->plan_operations;
      EXPECT_GT(row->step, absl::ZeroDuration());
      EXPECT_GT(row->trunk_link_bytes, row->worker_link_bytes);
      EXPECT_LE(row->workers_used, workers);
      EXPECT_GT(row->moved_bytes, 0u);
    }
  }
}

struct ControlWork {
  double calls_per_second = 0;
  uint64_t steps_checked = 0;
};

// A cluster at rest in membership, under load in text.
ControlWork MeasureControlPlane(int workers) {
  World world(1);
  ClusterOptions options;
  options.experts = workers;
  options.experts_per_layer = 32;
  options.coordinator.core.driver.expert_workers = workers;
  options.network.hiccup = 0;
  SimCluster cluster(&world, options);
  cluster.Boot();
  EXPECT_TRUE(cluster.RunUntilDone(absl::Seconds(30), [&] {
    return cluster.WhyNotSettled().empty();
  })) << cluster.WhyNotSettled();
  const uint64_t calls = cluster.plane().calls();
  cluster.clients().Start(absl::Milliseconds(50));
  cluster.RunFor(absl::Seconds(20));
  EXPECT_EQ(cluster.violation(), "");
  ControlWork work;
  work.calls_per_second =
      static_cast<double>(cluster.plane().calls() - calls) / 20;
  work.steps_checked = cluster.checker().rows_checked();
  return work;
}

TEST(Scale, TheControlPlanesWorkGrowsNoFasterThanTheNumberOfWorkers) {
  InitLogging("sim", "", "off").IgnoreError();
  const ControlWork four = MeasureControlPlane(4);
  const ControlWork sixteen = MeasureControlPlane(16);
  const ControlWork sixty_four = MeasureControlPlane(64);
  EXPECT_GT(four.calls_per_second, 0);
  EXPECT_LE(sixteen.calls_per_second, 4.1 * four.calls_per_second);
  EXPECT_LE(sixty_four.calls_per_second, 4.1 * sixteen.calls_per_second);
}

// Steps are not the control plane's business: more text, no more calls.
TEST(Scale, AStepCostsTheControlPlaneNothing) {
  InitLogging("sim", "", "off").IgnoreError();
  const auto calls_with_pause = [](absl::Duration pause, uint64_t* rows) {
    World world(2);
    ClusterOptions options;
    options.network.hiccup = 0;
    SimCluster cluster(&world, options);
    cluster.Boot();
    cluster.RunFor(absl::Seconds(5));
    const uint64_t calls = cluster.plane().calls();
    cluster.clients().Start(pause);
    cluster.RunFor(absl::Seconds(20));
    EXPECT_EQ(cluster.violation(), "");
    *rows = cluster.checker().rows_checked();
    return cluster.plane().calls() - calls;
  };
  uint64_t few_rows = 0, many_rows = 0;
  const uint64_t few = calls_with_pause(absl::Milliseconds(1000), &few_rows);
  const uint64_t many = calls_with_pause(absl::Milliseconds(20), &many_rows);
  EXPECT_GT(many_rows, 5 * few_rows);
  EXPECT_LE(many, few + few / 10 + 2);
}

}  // namespace
}  // namespace trunkline::sim
