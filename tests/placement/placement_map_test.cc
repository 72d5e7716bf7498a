#include "placement/placement_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "common/random.h"
#include "placement/placement_diff.h"
#include "placement/placement_version.h"
#include "placement/repair.h"
#include "placement/worker_profile.h"
#include "tests/placement/random_placement.h"

namespace trunkline::placement {
namespace {

using testing::HasSubstr;

// The formula of the header, computed the slow way.
TEST(InitialPlacement, IsTheStripeOfItsContract) {
  RandomStream random(1);
  for (int trial = 0; trial < 300; ++trial) {
    const auto shapes = RandomShapes(random);
    auto workers = RandomWorkers(random);
    const int64_t count = static_cast<int64_t>(workers.size());
    const int64_t replicas =
        1 + static_cast<int64_t>(random.NextBelow(workers.size()));
    const auto map =
        InitialPlacement(PlacementVersion(1), shapes, workers, replicas);
    ASSERT_TRUE(map.ok()) << map.status();
    EXPECT_TRUE(ValidatePlacement(*map, shapes).ok());
    std::sort(workers.begin(), workers.end());
    std::map<WorkerId, uint32_t> next;
    for (size_t l = 0; l < shapes.size(); ++l) {
      for (int64_t e = 0; e < shapes[l].experts; ++e) {
        std::set<WorkerId> owners;
        for (int64_t r = 0; r < replicas; ++r) {
          owners.insert(workers[static_cast<size_t>(
              (e * count / shapes[l].experts + r) % count)]);
        }
        std::vector<Replica> want;
        for (const WorkerId owner : owners) {
          want.push_back({.worker = owner, .slot = next[owner]++});
        }
        EXPECT_EQ(map->layers[l].replicas[static_cast<size_t>(e)], want);
      }
    }
    // The order of the list does not matter.
    std::reverse(workers.begin(), workers.end());
    const auto again =
        InitialPlacement(PlacementVersion(1), shapes, workers, replicas);
    EXPECT_EQ(again->layers[0].replicas, map->layers[0].replicas);
  }
}

TEST(InitialPlacement, RefusesWhatCanNotBePlaced) {
  const std::vector<MoeLayerShape> shapes = {
      {.layer = LayerIndex(1), .experts = 4, .expert_bytes = 1}};
  const auto code = [&](std::vector<WorkerId> workers, int64_t replicas) {
    return InitialPlacement(PlacementVersion(1), shapes, std::move(workers),
                            replicas)
        .status()
        .code();
  };
  const auto invalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(code({}, 1), invalid);
  EXPECT_EQ(code({WorkerId(1)}, 2), invalid);
  EXPECT_EQ(code({WorkerId(1)}, 0), invalid);
  EXPECT_EQ(code({WorkerId(1), WorkerId(1)}, 1), invalid);
}

// Every single damage to a valid map is found and named.
TEST(ValidatePlacement, NamesEveryDamage) {
  RandomStream random(2);
  for (int trial = 0; trial < 500; ++trial) {
    const auto shapes = RandomShapes(random);
    PlacementMap map = RandomPlacement(random, shapes, RandomWorkers(random));
    ASSERT_TRUE(ValidatePlacement(map, shapes).ok());
    const size_t l = random.NextBelow(map.layers.size());
    auto& layer = map.layers[l];
    const size_t e = random.NextBelow(layer.replicas.size());
    auto& replicas = layer.replicas[e];
    const std::string subject = "layer " + std::to_string(layer.layer.value) +
                                " expert " + std::to_string(e);
    std::string said;
    switch (random.NextBelow(7)) {
      case 0:
        replicas.clear();
        said = subject + " has no owner";
        break;
      case 1:
        replicas.push_back(replicas.back());
        said = subject + " has two copies on worker";
        break;
      case 2:
        replicas[0].worker = WorkerId();
        said = subject;
        break;
      case 3:
        replicas[0].slot += 1'000'000;
        said = "slot";
        break;
      case 4:
        layer.replicas.pop_back();
        said = "layer " + std::to_string(layer.layer.value);
        break;
      case 5:
        layer.layer = LayerIndex(layer.layer.value + 1000);
        said = "layer";
        break;
      default:
        map.layers.pop_back();
        said = "has no placement";
    }
    const absl::Status status = ValidatePlacement(map, shapes);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << said;
    EXPECT_THAT(std::string(status.message()), HasSubstr(said));
  }
}

TEST(ValidatePlacement, FindsASlotUsedTwiceAndASurplusLayer) {
  const std::vector<MoeLayerShape> shapes = {
      {.layer = LayerIndex(1), .experts = 4, .expert_bytes = 1}};
  PlacementMap map =
      *InitialPlacement(PlacementVersion(1), shapes, {WorkerId(0)}, 1);
  PlacementMap twice = map;
  twice.layers[0].replicas[1][0].slot = 0;
  EXPECT_THAT(std::string(ValidatePlacement(twice, shapes).message()),
              HasSubstr("uses slot 0 twice"));
  EXPECT_THAT(std::string(ValidatePlacement(map, {}).message()),
              HasSubstr("layer 1 is no moe layer"));
}

TEST(ValidateAgainstWorkers, RefusesTooManyBytesMixedClassesAndStrangers) {
  const std::vector<MoeLayerShape> shapes = {
      {.layer = LayerIndex(1), .experts = 4, .expert_bytes = 10}};
  std::vector<WorkerProfile> workers(2);
  for (uint32_t i = 0; i < 2; ++i) {
    workers[i].worker = WorkerId(i);
    workers[i].numerics_class = "portable";
  }
  const PlacementMap map = *InitialPlacement(PlacementVersion(1), shapes,
                                             {WorkerId(0), WorkerId(1)}, 2);
  EXPECT_TRUE(ValidateAgainstWorkers(map, shapes, workers).ok());
  workers[1].memory_bytes = 40;
  EXPECT_TRUE(ValidateAgainstWorkers(map, shapes, workers).ok());
  workers[1].memory_bytes = 39;
  EXPECT_THAT(
      std::string(ValidateAgainstWorkers(map, shapes, workers).message()),
      HasSubstr("worker 1 would hold 40 bytes"));
  workers[1].memory_bytes = 0;
  workers[1].numerics_class = "cuda";
  EXPECT_THAT(
      std::string(ValidateAgainstWorkers(map, shapes, workers).message()),
      HasSubstr("'cuda'"));
  workers.pop_back();
  EXPECT_THAT(
      std::string(ValidateAgainstWorkers(map, shapes, workers).message()),
      HasSubstr("worker 1 is no usable"));
}

// Copies come and go exactly as the two maps say, counted by brute force.
TEST(DiffPlacements, IsTheDifferenceOfTheOwnerSets) {
  RandomStream random(3);
  for (int trial = 0; trial < 300; ++trial) {
    const auto shapes = RandomShapes(random);
    const auto workers = RandomWorkers(random);
    const PlacementMap from = RandomPlacement(random, shapes, workers);
    const PlacementMap to = RandomPlacement(random, shapes, workers);
    const auto diff = DiffPlacements(from, to, shapes);
    ASSERT_TRUE(diff.ok()) << diff.status();
    std::set<std::tuple<uint32_t, size_t, WorkerId>> loads, drops;
    uint64_t bytes = 0;
    for (size_t l = 0; l < shapes.size(); ++l) {
      for (size_t e = 0; e < from.layers[l].replicas.size(); ++e) {
        std::set<WorkerId> a, b;
        for (const auto& r : from.layers[l].replicas[e]) a.insert(r.worker);
        for (const auto& r : to.layers[l].replicas[e]) b.insert(r.worker);
        for (const WorkerId w : b) {
          if (a.count(w) != 0) continue;
          loads.emplace(shapes[l].layer.value, e, w);
          bytes += static_cast<uint64_t>(shapes[l].expert_bytes);
        }
        for (const WorkerId w : a) {
          if (b.count(w) == 0) drops.emplace(shapes[l].layer.value, e, w);
        }
      }
    }
    EXPECT_EQ(diff->bytes, bytes);
    uint64_t by_worker = 0;
    for (const auto& [worker, count] : diff->bytes_by_worker)
      by_worker += count;
    EXPECT_EQ(by_worker, bytes);
    ASSERT_EQ(diff->loads.size(), loads.size());
    ASSERT_EQ(diff->drops.size(), drops.size());
    auto load = loads.begin();
    for (const ExpertLoadMove& move : diff->loads) {
      EXPECT_EQ(
          std::tuple(move.layer.value, size_t{move.expert.value}, move.worker),
          *load++);
      for (const WorkerId source : move.sources) {
        EXPECT_NE(source, move.worker);
      }
      EXPECT_FALSE(move.sources.empty());
    }
    EXPECT_TRUE(DiffPlacements(from, from, shapes)->empty());
  }
}

TEST(DiffPlacements, FromNothingEverythingIsLoadedFromNobody) {
  const std::vector<MoeLayerShape> shapes = {
      {.layer = LayerIndex(1), .experts = 4, .expert_bytes = 10}};
  const PlacementMap to = *InitialPlacement(PlacementVersion(1), shapes,
                                            {WorkerId(0), WorkerId(1)}, 1);
  const auto diff = DiffPlacements(PlacementMap(), to, shapes);
  ASSERT_TRUE(diff.ok());
  EXPECT_EQ(diff->bytes, 40u);
  EXPECT_TRUE(diff->loads[0].sources.empty());
}

// After a repair every expert has a usable owner, copies on usable workers are
// untouched, and nobody holds more than fits.
TEST(RepairPlacement, KeepsWhatWorksAndReplacesWhatIsGone) {
  RandomStream random(4);
  int repaired = 0, refused = 0;
  for (int trial = 0; trial < 600; ++trial) {
    const auto shapes = RandomShapes(random);
    const auto ids = RandomWorkers(random);
    const PlacementMap map = RandomPlacement(random, shapes, ids);
    std::vector<WorkerProfile> usable;
    for (const WorkerId id : ids) {
      if (random.NextBelow(3) == 0) continue;
      WorkerProfile profile;
      profile.worker = id;
      profile.speed = 0.5 + random.NextUnit();
      profile.failure_domain = std::to_string(id.value % 3);
      usable.push_back(profile);
    }
    const auto before = ShardBytes(map, shapes, usable);
    for (size_t i = 0; i < usable.size(); ++i) {
      if (random.NextBelow(2) == 0) {
        usable[i].memory_bytes = before[i] + 100 * (1 + random.NextBelow(30));
      }
    }
    const auto repair = RepairPlacement(map, shapes, usable, {&map});
    if (!repair.ok()) {
      ++refused;
      EXPECT_EQ(repair.status().code(), absl::StatusCode::kResourceExhausted);
      EXPECT_THAT(std::string(repair.status().message()), HasSubstr("expert"));
      continue;
    }
    ++repaired;
    ASSERT_TRUE(ValidatePlacement(repair->map, shapes).ok());
    ASSERT_TRUE(ValidateAgainstWorkers(repair->map, shapes, usable).ok());
    ASSERT_TRUE(ValidateStaging({&map}, repair->map, shapes, usable).ok());
    int64_t missing = 0;
    for (size_t l = 0; l < shapes.size(); ++l) {
      for (size_t e = 0; e < map.layers[l].replicas.size(); ++e) {
        std::set<WorkerId> now;
        for (const auto& r : repair->map.layers[l].replicas[e]) {
          now.insert(r.worker);
        }
        for (const auto& r : map.layers[l].replicas[e]) {
          if (FindProfile(usable, r.worker) == nullptr) continue;
          EXPECT_EQ(now.count(r.worker), 1u);
        }
        const size_t wanted =
            std::min(map.layers[l].replicas[e].size(), usable.size());
        EXPECT_LE(now.size(), std::max<size_t>(wanted, 1));
        if (now.size() < wanted) {
          missing += static_cast<int64_t>(wanted - now.size());
        }
      }
    }
    EXPECT_EQ(missing, repair->copies_missing);
    if (!repair->changed) {
      EXPECT_EQ(repair->copies_missing, 0);
    }
  }
  EXPECT_GT(repaired, 50);
  EXPECT_GT(refused, 10);
}

TEST(RepairPlacement, PutsTheNewCopyIntoAnotherFailureDomain) {
  const std::vector<MoeLayerShape> shapes = {
      {.layer = LayerIndex(1), .experts = 3, .expert_bytes = 10}};
  const PlacementMap map = *InitialPlacement(PlacementVersion(1), shapes,
                                             {WorkerId(0), WorkerId(1)}, 2);
  std::vector<WorkerProfile> usable(3);
  const char* domains[] = {"rack-a", "rack-a", "rack-b"};
  const uint32_t ids[] = {0, 2, 3};  // worker 1 is gone
  for (size_t i = 0; i < 3; ++i) {
    usable[i].worker = WorkerId(ids[i]);
    usable[i].failure_domain = domains[i];
  }
  const auto repair = RepairPlacement(map, shapes, usable, {&map});
  ASSERT_TRUE(repair.ok());
  for (const auto& replicas : repair->map.layers[0].replicas) {
    EXPECT_EQ(replicas[1].worker, WorkerId(3));
  }
}

TEST(PlacementVersion, LegalTransitionsAreThoseOfTheDrawing) {
  using S = VersionState;
  const std::set<std::pair<S, S>> legal = {
      {S::kProposed, S::kStaging},  {S::kStaging, S::kReady},
      {S::kReady, S::kActive},      {S::kActive, S::kDraining},
      {S::kDraining, S::kRetired},  {S::kProposed, S::kAbandoned},
      {S::kStaging, S::kAbandoned}, {S::kReady, S::kAbandoned}};
  for (int from = 1; from <= 7; ++from) {
    for (int to = 1; to <= 7; ++to) {
      const S a = static_cast<S>(from), b = static_cast<S>(to);
      EXPECT_EQ(IsLegalTransition(a, b), legal.count({a, b}) == 1)
          << Name(a) << " " << Name(b);
      EXPECT_EQ(CheckTransition(PlacementVersion(3), a, b).ok(),
                IsLegalTransition(a, b));
    }
  }
  EXPECT_THAT(std::string(CheckTransition(PlacementVersion(3), S::kActive,
                                          S::kAbandoned)
                              .message()),
              HasSubstr("version 3 is active"));
}

}  // namespace
}  // namespace trunkline::placement
