#pragma once

// What every placement store promises (coordinator/placement_store.h), run by
// each of them: tests/coordinator/store_contract_test.cc.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

#include "common/random.h"
#include "tests/coordinator/numbered_change.h"

namespace trunkline::coordinator {

// Somewhere to keep records that outlives the stores opened on it.
class StoreBackend {
 public:
  virtual ~StoreBackend() = default;
  // Opens a store as the next coordinator would.
  virtual absl::StatusOr<std::unique_ptr<PlacementStore>> Open(
      uint64_t new_cluster_id) = 0;
};

struct StoreBackendCase {
  std::string name;
  std::function<std::unique_ptr<StoreBackend>()> make;
};

class PlacementStoreContract
    : public ::testing::TestWithParam<StoreBackendCase> {
 protected:
  void SetUp() override {
    backend_ = GetParam().make();
    ASSERT_NE(backend_, nullptr);
  }
  std::unique_ptr<PlacementStore> Open(uint64_t new_cluster_id = 5) {
    auto store = backend_->Open(new_cluster_id);
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }
  static StoreContents Load(PlacementStore& store) {
    auto contents = store.Load();
    EXPECT_TRUE(contents.ok()) << contents.status();
    return contents.ok() ? *std::move(contents) : StoreContents();
  }

  std::unique_ptr<StoreBackend> backend_;
};

inline void ExpectSameWorker(const WorkerRecord& got,
                             const WorkerRecord& want) {
  EXPECT_EQ(got.id, want.id);
  EXPECT_EQ(got.incarnation, want.incarnation);
  EXPECT_EQ(got.alive, want.alive);
  EXPECT_EQ(got.left, want.left);
  EXPECT_EQ(got.cordoned, want.cordoned);
  EXPECT_EQ(got.leaving, want.leaving);
  const control::Registration &a = got.registration, &b = want.registration;
  EXPECT_EQ(a.name, b.name);
  EXPECT_EQ(a.role, b.role);
  EXPECT_EQ(a.data_address, b.data_address);
  EXPECT_EQ(a.api_address, b.api_address);
  EXPECT_EQ(a.metrics_address, b.metrics_address);
  EXPECT_EQ(a.model_digest, b.model_digest);
  EXPECT_EQ(a.numerics_class, b.numerics_class);
  EXPECT_EQ(a.self_check_digest, b.self_check_digest);
  EXPECT_EQ(a.failure_domain, b.failure_domain);
  EXPECT_EQ(a.memory_bytes, b.memory_bytes);
  EXPECT_EQ(a.speed, b.speed);
  EXPECT_EQ(a.process, b.process);
  EXPECT_EQ(got.replaced, want.replaced);
  ASSERT_EQ(got.versions.size(), want.versions.size());
  for (size_t i = 0; i < want.versions.size(); ++i) {
    EXPECT_EQ(got.versions[i].version, want.versions[i].version);
    EXPECT_EQ(got.versions[i].state, want.versions[i].state);
    EXPECT_EQ(got.versions[i].error, want.versions[i].error);
  }
}

// All but the epoch and the cluster's id, which a store gives itself.
inline void ExpectSameContents(const StoreContents& got,
                               const StoreContents& want) {
  EXPECT_EQ(got.cluster.next_worker, want.cluster.next_worker);
  EXPECT_EQ(got.cluster.next_version, want.cluster.next_version);
  EXPECT_EQ(got.cluster.next_history, want.cluster.next_history);
  EXPECT_EQ(got.cluster.pinned, want.cluster.pinned);
  EXPECT_EQ(got.cluster.pin_reason, want.cluster.pin_reason);
  ASSERT_EQ(got.cluster.model.has_value(), want.cluster.model.has_value());
  if (want.cluster.model) {
    EXPECT_EQ(got.cluster.model->model_digest,
              want.cluster.model->model_digest);
    EXPECT_EQ(got.cluster.model->registered_by,
              want.cluster.model->registered_by);
    EXPECT_EQ(got.cluster.model->sizes_from_expert,
              want.cluster.model->sizes_from_expert);
    ASSERT_EQ(got.cluster.model->moe_layers.size(),
              want.cluster.model->moe_layers.size());
  }
  ASSERT_EQ(got.workers.size(), want.workers.size());
  for (size_t i = 0; i < want.workers.size(); ++i) {
    ExpectSameWorker(got.workers[i], want.workers[i]);
  }
  ASSERT_EQ(got.placements.size(), want.placements.size());
  for (size_t i = 0; i < want.placements.size(); ++i) {
    const PlacementRecord &a = got.placements[i], &b = want.placements[i];
    EXPECT_EQ(a.map.version, b.map.version);
    EXPECT_EQ(a.state, b.state);
    EXPECT_EQ(a.origin, b.origin);
    EXPECT_EQ(a.reason, b.reason);
    EXPECT_EQ(a.replaces, b.replaces);
    ASSERT_EQ(a.map.layers.size(), b.map.layers.size());
    for (size_t l = 0; l < b.map.layers.size(); ++l) {
      EXPECT_EQ(a.map.layers[l].layer, b.map.layers[l].layer);
      EXPECT_EQ(a.map.layers[l].replicas, b.map.layers[l].replicas);
    }
  }
  ASSERT_EQ(got.history.size(), want.history.size());
  for (size_t i = 0; i < want.history.size(); ++i) {
    EXPECT_EQ(got.history[i].sequence, want.history[i].sequence);
    EXPECT_EQ(got.history[i].at, want.history[i].at);
    EXPECT_EQ(got.history[i].version, want.history[i].version);
    EXPECT_EQ(got.history[i].state, want.history[i].state);
    EXPECT_EQ(got.history[i].detail, want.history[i].detail);
  }
}

TEST_P(PlacementStoreContract, GivesBackEveryFieldAndBeginsAnEpochPerOpening) {
  {
    const auto store = Open(1234567890123456789ull);
    ASSERT_NE(store, nullptr);
    const StoreContents fresh = Load(*store);
    EXPECT_EQ(fresh.cluster.epoch, 1u);
    EXPECT_EQ(fresh.cluster.cluster_id, 1234567890123456789ull);
    EXPECT_EQ(fresh.cluster.next_version, 1u);
    EXPECT_FALSE(fresh.cluster.model.has_value());
    for (uint64_t n = 1; n <= 7; ++n) {
      const absl::Status status = store->Commit(NumberedChange(n));
      ASSERT_TRUE(status.ok()) << status;
    }
  }
  const auto store = Open(5);
  ASSERT_NE(store, nullptr);
  const StoreContents contents = Load(*store);
  EXPECT_EQ(contents.cluster.epoch, 2u);
  EXPECT_EQ(contents.cluster.cluster_id, 1234567890123456789ull);
  ExpectWholeChange(contents, 7);
  ExpectSameWorker(contents.workers[1], TestWorker(1, 7));
  EXPECT_EQ(contents.placements[2].map.layers[1].replicas,
            TestPlacement(7).map.layers[1].replicas);
  EXPECT_EQ(contents.placements[2].replaces, PlacementVersion(6));
}

// Whoever opens last is the only one who writes: the other is refused at the
// opening or at its next write, which then leaves no trace.
TEST_P(PlacementStoreContract, OnlyTheNewestEpochReadsAndWrites) {
  const auto first = Open();
  ASSERT_NE(first, nullptr);
  Load(*first);
  ASSERT_TRUE(first->Commit(NumberedChange(1)).ok());
  const auto second = backend_->Open(5);
  if (!second.ok()) {
    EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_TRUE(first->Commit(NumberedChange(2)).ok());
    return;
  }
  for (int again = 0; again < 2; ++again) {
    EXPECT_EQ(first->Commit(NumberedChange(2)).code(),
              absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(first->Load().status().code(),
              absl::StatusCode::kFailedPrecondition);
  }
  const StoreContents contents = Load(**second);
  EXPECT_EQ(contents.cluster.epoch, 2u);
  ExpectWholeChange(contents, 1);
  EXPECT_TRUE((*second)->Commit(NumberedChange(2)).ok());
}

// A rack of workers loses its leases at once: one change, however many records.
TEST_P(PlacementStoreContract, AChangeOfThousandsOfRecordsIsOneChange) {
  StoreContents want;
  StoreChange change = NumberedChange(1);
  change.workers.clear();
  for (uint32_t id = 0; id < 4096; ++id) {
    change.workers.push_back(TestWorker(id, 2));
  }
  {
    const auto store = Open();
    ASSERT_NE(store, nullptr);
    Load(*store);
    const absl::Status status = store->Commit(change);
    ASSERT_TRUE(status.ok()) << status;
    ApplyChange(change, &want);
    StoreChange next = NumberedChange(2);
    for (uint32_t id = 100; id < 4000; ++id) {
      next.forgotten_workers.push_back(WorkerId(id));
    }
    ASSERT_TRUE(store->Commit(next).ok());
    ApplyChange(next, &want);
    ExpectSameContents(Load(*store), want);
  }
  const auto store = Open();
  ASSERT_NE(store, nullptr);
  ExpectSameContents(Load(*store), want);
}

TEST_P(PlacementStoreContract, RandomChangesLeaveWhatAPlainModelHolds) {
  RandomStream random(20261130);
  StoreContents want;
  auto store = Open();
  ASSERT_NE(store, nullptr);
  want.cluster = Load(*store).cluster;
  uint64_t sequence = 0, version = 0;
  for (int step = 0; step < 120; ++step) {
    SCOPED_TRACE(step);
    StoreChange change;
    if (random.NextBelow(3) == 0) {
      change.cluster = NumberedChange(1 + random.NextBelow(50)).cluster;
    }
    for (uint32_t id = 0; id < 6; ++id) {
      const uint64_t what = random.NextBelow(6);
      if (what <= 1) {
        change.workers.push_back(TestWorker(id, random.NextBelow(9)));
      }
      if (what == 1 || what == 2) {
        change.forgotten_workers.push_back(WorkerId(id));
      }
    }
    if (random.NextBelow(2) == 0) {
      change.placements.push_back(TestPlacement(++version));
    }
    for (const PlacementRecord& old : want.placements) {
      const uint64_t what = random.NextBelow(8);
      if (what == 0) change.forgotten_placements.push_back(old.map.version);
      if (what == 1) {
        change.placements.push_back(old);
        change.placements.back().state = placement::VersionState::kRetired;
        change.placements.back().reason = std::to_string(step);
      }
    }
    for (uint64_t n = random.NextBelow(4); n > 0; --n) {
      change.history.push_back(
          {.sequence = ++sequence,
           .at = absl::FromUnixSeconds(step) - absl::Hours(1),
           .version = PlacementVersion(1 + random.NextBelow(9)),
           .state = placement::VersionState::kActive,
           .detail = std::to_string(n)});
    }
    if (!change.history.empty() && sequence > 20) {
      change.history_from = sequence - 10 - random.NextBelow(5);
    }
    const absl::Status status = store->Commit(change);
    ASSERT_TRUE(status.ok()) << status;
    ApplyChange(change, &want);
    if (random.NextBelow(8) == 0) {
      store.reset();
      store = Open();
      ASSERT_NE(store, nullptr);
    }
    if (random.NextBelow(4) == 0) ExpectSameContents(Load(*store), want);
    if (HasFailure()) return;
  }
  ExpectSameContents(Load(*store), want);
}

TEST_P(PlacementStoreContract, ConfirmsWhileItIsTheNewestAndChangesNothing) {
  StoreContents want;
  for (uint64_t n = 1; n <= 3; ++n) {
    const auto store = Open();
    ASSERT_NE(store, nullptr);
    want.cluster = Load(*store).cluster;
    EXPECT_TRUE(store->Confirm().ok()) << store->Confirm();
    ASSERT_TRUE(store->Commit(NumberedChange(n)).ok());
    ApplyChange(NumberedChange(n), &want);
    EXPECT_TRUE(store->Confirm().ok()) << store->Confirm();
    EXPECT_TRUE(store->Confirm().ok());
    ExpectSameContents(Load(*store), want);
  }
}

TEST_P(PlacementStoreContract, AnEmptyChangeIsNoFault) {
  const auto store = Open();
  ASSERT_NE(store, nullptr);
  Load(*store);
  EXPECT_TRUE(store->Commit(StoreChange()).ok());
  EXPECT_TRUE(store->Commit(NumberedChange(1)).ok());
}

}  // namespace trunkline::coordinator
