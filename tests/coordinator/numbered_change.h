#pragma once

// Changes of which each touches every kind of record, for tests of stores: what
// is found later tells exactly which of them happened.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "coordinator/placement_store.h"
#include "tests/coordinator/cluster_fixture.h"

namespace trunkline::coordinator {

inline WorkerRecord TestWorker(uint32_t id, uint64_t incarnation) {
  WorkerRecord worker;
  worker.id = WorkerId(id);
  worker.registration =
      TestRegistration("worker-" + std::to_string(id), kExpertRole);
  worker.registration.moe_layers.clear();
  worker.registration.speed = 1.5;
  worker.registration.memory_bytes = ~uint64_t{0} - 5;
  worker.registration.process = ~uint64_t{0} - incarnation;
  worker.replaced = {~uint64_t{0}, incarnation};
  worker.incarnation = incarnation;
  worker.alive = incarnation % 2 == 0;
  worker.cordoned = true;
  worker.versions = {{.version = PlacementVersion(incarnation + 1),
                      .state = control::ShardState::kFailed,
                      .error = "it's broken",
                      .bytes_loaded = 0,
                      .bytes_total = 0}};
  return worker;
}

inline PlacementRecord TestPlacement(uint64_t version) {
  PlacementRecord record;
  record.map = *placement::InitialPlacement(
      PlacementVersion(version), TestShapes(), {WorkerId(0), WorkerId(1)}, 1);
  record.state = placement::VersionState::kStaging;
  record.origin = "apply";
  record.reason = "none";
  if (version > 1) record.replaces = PlacementVersion(version - 1);
  return record;
}

// Change number n touches every table, so that a torn one shows.
inline StoreChange NumberedChange(uint64_t n) {
  StoreChange change;
  ClusterRecord cluster;
  cluster.next_worker = static_cast<uint32_t>(n);
  cluster.next_version = n;
  cluster.next_history = n;
  cluster.pinned = n % 2 == 1;
  cluster.pin_reason = std::to_string(n);
  cluster.model = ClusterModel{.model_digest = std::to_string(n),
                               .numerics_class = "portable",
                               .self_check_digest = "c",
                               .moe_layers = TestShapes(),
                               .registered_by = "a",
                               .sizes_from_expert = true};
  change.cluster = cluster;
  change.workers = {TestWorker(0, n), TestWorker(1, n)};
  change.placements = {TestPlacement(n)};
  if (n > 3) change.forgotten_placements = {PlacementVersion(n - 3)};
  change.history = {{.sequence = n,
                     .at = absl::FromUnixSeconds(static_cast<int64_t>(n)),
                     .version = PlacementVersion(n),
                     .state = placement::VersionState::kStaging,
                     .detail = "change"}};
  change.history_from = n > 5 ? n - 5 : 0;
  return change;
}

// Exactly what changes 1 to n leave behind.
inline void ExpectWholeChange(const StoreContents& contents, uint64_t n) {
  EXPECT_EQ(contents.cluster.next_worker, n);
  EXPECT_EQ(contents.cluster.next_version, n);
  EXPECT_EQ(contents.cluster.pin_reason, std::to_string(n));
  ASSERT_TRUE(contents.cluster.model.has_value());
  EXPECT_EQ(contents.cluster.model->model_digest, std::to_string(n));
  EXPECT_EQ(contents.cluster.model->moe_layers.size(), 2u);
  ASSERT_EQ(contents.workers.size(), 2u);
  for (const WorkerRecord& worker : contents.workers) {
    EXPECT_EQ(worker.incarnation, n);
    ASSERT_EQ(worker.versions.size(), 1u);
    EXPECT_EQ(worker.versions[0].version.value, n + 1);
    // What a file of the first schema lacks.
    if (worker.registration.process == 0) continue;
    EXPECT_EQ(worker.registration.process, ~uint64_t{0} - n);
    EXPECT_EQ(worker.replaced, (std::vector<uint64_t>{~uint64_t{0}, n}));
  }
  ASSERT_EQ(contents.placements.size(), std::min<uint64_t>(n, 3));
  EXPECT_EQ(contents.placements.back().map.version.value, n);
  ASSERT_EQ(contents.history.size(), n > 5 ? 6u : n);
  EXPECT_EQ(contents.history.back().sequence, n);
}

}  // namespace trunkline::coordinator
