#pragma once

// A coordinator with two expert workers and a trunk, and what became of its
// versions.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/coordinator/cluster_fixture.h"

namespace trunkline::coordinator {

inline placement::PlacementMap Rotated(const placement::PlacementMap& map,
                                       std::vector<WorkerId> workers,
                                       size_t by) {
  placement::PlacementMap rotated = map;
  for (auto& layer : rotated.layers) {
    for (auto& replicas : layer.replicas) {
      for (auto& replica : replicas) {
        const size_t index = static_cast<size_t>(
            std::find(workers.begin(), workers.end(), replica.worker) -
            workers.begin());
        replica.worker = workers[(index + by) % workers.size()];
      }
    }
  }
  placement::AssignSlots(&rotated);
  return rotated;
}

inline std::vector<std::string> States(const DrivenCluster& cluster,
                                       uint64_t version) {
  std::vector<std::string> states;
  for (const HistoryRecord& entry : cluster.contents().history) {
    if (entry.version.value == version) states.push_back(Name(entry.state));
  }
  return states;
}

inline placement::VersionState StateOf(const DrivenCluster& cluster,
                                       uint64_t version) {
  for (const PlacementRecord& record : cluster.contents().placements) {
    if (record.map.version.value == version) return record.state;
  }
  ADD_FAILURE() << "version " << version << " is not stored";
  return placement::VersionState::kAbandoned;
}

class PlacementLife : public testing::Test {
 protected:
  // Two expert workers and a trunk, version 1 active.
  void StartTwo() {
    ASSERT_TRUE(cluster.Join("t", kTrunkRole).ok());
    ASSERT_TRUE(cluster.Join("a", kExpertRole).ok());
    ASSERT_TRUE(cluster.Join("b", kExpertRole).ok());
    cluster.Settle(all);
    ASSERT_EQ(cluster.View().active, PlacementVersion(1));
  }
  Reply ApplyRotated() {
    return cluster.Do(
        ApplyEvent{.map = Rotated(cluster.View().placements.back().map,
                                  {cluster.Id("a"), cluster.Id("b")}, 1),
                   .origin = "apply",
                   .expected_active = PlacementVersion()});
  }

  DrivenCluster cluster{TestOptions(2)};
  const std::vector<std::string> all = {"t", "a", "b"};
};

}  // namespace trunkline::coordinator
