// Random joins, silences, loads, changes, drains, restarts and failed commits,
// with the invariants checked after every event. A failure prints its seed.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "common/random.h"
#include "coordinator/durable_coordinator.h"
#include "tests/coordinator/cluster_fixture.h"

namespace trunkline::coordinator {
namespace {

using placement::VersionState;

// What the disk holds; commits can be made to fail before or after they took
// effect, which is what a lost connection to a store looks like.
struct Disk {
  StoreContents contents = EmptyContents();
  enum Fault { kNone, kBefore, kAfter } fault = kNone;
  bool unreadable = false;
};

class FaultyStore : public PlacementStore {
 public:
  explicit FaultyStore(Disk* disk) : disk_(disk) {}
  absl::StatusOr<StoreContents> Load() override {
    if (disk_->unreadable) return absl::InternalError("disk gone");
    return disk_->contents;
  }
  absl::Status Commit(const StoreChange& change) override {
    if (disk_->fault != Disk::kBefore) ApplyChange(change, &disk_->contents);
    const Disk::Fault fault = std::exchange(disk_->fault, Disk::kNone);
    if (fault == Disk::kNone) return absl::OkStatus();
    return absl::InternalError("disk failed");
  }
  absl::Status Confirm() override {
    if (disk_->unreadable) return absl::InternalError("disk gone");
    return absl::OkStatus();
  }

 private:
  Disk* disk_;
};

struct SimWorker {
  control::Registration registration;
  bool running = false;
  bool fails_to_load = false;
  std::optional<control::Identity> identity;
  uint64_t before = 0;  // the incarnation of the process before
  std::map<PlacementVersion, control::ShardState> shards;
  // What it follows: a trunk starts steps under the active version of this.
  control::ClusterView view;
  PlacementVersion in_flight;
};

class Walk {
 public:
  explicit Walk(uint64_t seed) : random_(seed) {
    options_ = TestOptions(2, static_cast<int64_t>(1 + random_.NextBelow(2)));
    options_.driver.stage_timeout = absl::Seconds(20);
    options_.driver.finished_kept = 4;
    options_.driver.history_kept = 50;
    for (int i = 0; i < 4; ++i) AddWorker("e" + std::to_string(i), kExpertRole);
    for (int i = 0; i < 2; ++i) AddWorker("t" + std::to_string(i), kTrunkRole);
    Start();
  }

  void Run(int steps) {
    for (int i = 0; i < steps && !testing::Test::HasFailure(); ++i) {
      Act();
      Check();
    }
  }

  // After faults stop, with every worker running, the cluster gets ready.
  void Converge() {
    disk_.fault = Disk::kNone;
    disk_.unreadable = false;
    for (SimWorker& worker : workers_) {
      worker.fails_to_load = false;
      if (!worker.running) Boot(&worker);
      Do(DrainEvent{.worker = worker.registration.name, .drain = false});
      worker.in_flight = PlacementVersion();
    }
    Do(PinEvent{});
    for (int i = 0; i < 200; ++i) {
      now_ += absl::Milliseconds(500);
      Tick();
      for (SimWorker& worker : workers_) Beat(&worker);
      Check();
      if (testing::Test::HasFailure()) return;
    }
    const control::ClusterView view = durable_->View();
    EXPECT_EQ(view.waiting_for, "");
    EXPECT_TRUE(view.active.valid());
    EXPECT_EQ(view.placements.size(), 1u);
  }

 private:
  void AddWorker(const std::string& name, control::Role role) {
    SimWorker worker;
    worker.registration = TestRegistration(name, role);
    worker.registration.memory_bytes = 100 * (10 + random_.NextBelow(20));
    workers_.push_back(worker);
  }

  Moment At() const { return {.now = now_, .wall = now_}; }

  void Start() {
    disk_.unreadable = false;  // or the process would not start
    ++disk_.contents.cluster.epoch;
    auto durable = DurableCoordinator::Open(
        options_, std::make_unique<FaultyStore>(&disk_), At());
    ASSERT_TRUE(durable.ok()) << durable.status();
    durable_ = *std::move(durable);
    seen_revision_ = 0;
  }

  Reply Do(const Event& event) {
    auto outcome = durable_->Step(event, At());
    // What was answered OK is on the disk.
    EXPECT_FALSE(outcome.reply.status.ok() && durable_->stale());
    return outcome.reply;
  }
  void Tick() { durable_->Tick(At()); }

  void Boot(SimWorker* worker) {
    worker->running = true;
    worker->registration.process = ++processes_;
    worker->registration.replaces = 0;
    if (worker->identity) worker->before = worker->identity->incarnation;
    worker->identity.reset();
    worker->shards.clear();
    worker->view = {};
    worker->in_flight = PlacementVersion();
    Join(worker);
  }

  void Join(SimWorker* worker) {
    Reply reply = Do(RegisterEvent{.registration = worker->registration});
    if (absl::IsAborted(reply.status)) {
      worker->registration.replaces = control::NameHeldBy(reply.status);
      reply = Do(RegisterEvent{.registration = worker->registration});
    }
    if (!reply.status.ok()) return;
    const auto identity = std::get<RegisterReply>(reply.body).identity;
    EXPECT_GT(identity.incarnation, worker->before);
    if (worker->identity) {  // the same process
      EXPECT_EQ(identity.worker, worker->identity->worker);
      EXPECT_EQ(identity.incarnation, worker->identity->incarnation);
    }
    worker->identity = identity;
    sent_.push_back(worker->registration);
  }

  void Follow(SimWorker* worker) {
    if (durable_->stale()) return;
    const control::ClusterView view = durable_->View();
    // Versions only grow in every worker's eyes.
    if (worker->view.active.valid()) {
      ASSERT_TRUE(view.active.valid());
      ASSERT_GE(view.active, worker->view.active);
    }
    worker->view = view;
    std::map<PlacementVersion, control::ShardState> wanted;
    for (const auto& placement : view.placements) {
      const auto owners = placement.map.Workers();
      if (!worker->identity || std::count(owners.begin(), owners.end(),
                                          worker->identity->worker) == 0) {
        continue;
      }
      const auto old = worker->shards.find(placement.map.version);
      wanted[placement.map.version] = old == worker->shards.end()
                                          ? control::ShardState::kLoading
                                          : old->second;
    }
    worker->shards = wanted;
  }

  void Beat(SimWorker* worker) {
    if (!worker->running) return;
    if (!worker->identity) return Join(worker);
    // The report says what was followed before this beat's view arrived.
    control::Heartbeat heartbeat;
    heartbeat.worker = worker->identity->worker;
    heartbeat.incarnation = worker->identity->incarnation;
    heartbeat.cluster_id = worker->identity->cluster_id;
    heartbeat.view_epoch = worker->view.epoch;
    heartbeat.view_revision = worker->view.revision;
    heartbeat.report.oldest_in_flight = worker->in_flight;
    for (auto& [version, state] : worker->shards) {
      heartbeat.report.versions.push_back({.version = version,
                                           .state = state,
                                           .error = "",
                                           .bytes_loaded = 0,
                                           .bytes_total = 0});
      if (state == control::ShardState::kLoading) {
        state = worker->fails_to_load ? control::ShardState::kFailed
                                      : control::ShardState::kReady;
      }
    }
    const absl::Status status =
        Do(HeartbeatEvent{.heartbeat = heartbeat}).status;
    // Each name has one process at a time: nothing that is late may stop it.
    EXPECT_FALSE(absl::IsFailedPrecondition(status)) << status;
    if (absl::IsNotFound(status)) Join(worker);
    Follow(worker);
  }

  SimWorker& Pick() { return workers_[random_.NextBelow(workers_.size())]; }

  void Act() {
    now_ += absl::Milliseconds(static_cast<int64_t>(random_.NextBelow(800)));
    switch (random_.NextBelow(20)) {
      case 0:
        if (SimWorker& w = Pick(); w.running) w.running = false;
        break;
      case 1:
      case 2:
        if (SimWorker& w = Pick(); !w.running) Boot(&w);
        break;
      case 3:
        Apply();
        break;
      case 4:
        Do(RollbackEvent{});
        break;
      case 5:
        Do(DrainEvent{.worker = Pick().registration.name,
                      .drain = random_.NextBelow(2) == 0});
        break;
      case 6:
        Start();  // crash and restart
        break;
      case 7:
        disk_.fault = random_.NextBelow(2) == 0 ? Disk::kBefore : Disk::kAfter;
        disk_.unreadable = random_.NextBelow(3) == 0;
        break;
      case 8:
        disk_.unreadable = false;
        break;
      case 9:
        Pick().fails_to_load = random_.NextBelow(4) == 0;
        break;
      case 10:
        if (SimWorker& w = Pick(); w.identity) {
          Do(LeaveEvent{.worker = w.identity->worker,
                        .incarnation = w.identity->incarnation,
                        .cluster_id = w.identity->cluster_id});
          w.running = false;
        }
        break;
      case 11: {  // a trunk starts a step, or ends the one it has
        SimWorker& w = Pick();
        const bool trunk = w.registration.role == kTrunkRole && w.running;
        if (trunk && w.in_flight.valid()) {
          w.in_flight = PlacementVersion();
        } else if (trunk) {
          w.in_flight = w.view.active;
        }
        break;
      }
      case 12:  // the network has held a registration back
        if (sent_.empty()) break;
        Do(RegisterEvent{.registration =
                             sent_[random_.NextBelow(sent_.size())]});
        break;
      default:
        for (SimWorker& w : workers_) {
          if (random_.NextBelow(3) != 0) Beat(&w);
        }
    }
    Tick();
    if (disk_.unreadable && random_.NextBelow(4) == 0) {
      disk_.unreadable = false;
    }
  }

  void Apply() {
    if (durable_->stale() || !durable_->core().cluster().model) return;
    std::vector<WorkerId> ids;
    for (const SimWorker& w : workers_) {
      if (w.registration.role == kExpertRole && w.identity) {
        ids.push_back(w.identity->worker);
      }
    }
    if (ids.empty()) return;
    std::rotate(ids.begin(),
                ids.begin() +
                    static_cast<std::ptrdiff_t>(random_.NextBelow(ids.size())),
                ids.end());
    auto map = placement::InitialPlacement(PlacementVersion(), TestShapes(),
                                           {ids[0]}, 1);
    ASSERT_TRUE(map.ok());
    for (auto& layer : map->layers) {
      for (auto& replicas : layer.replicas) {
        replicas[0].worker = ids[random_.NextBelow(ids.size())];
      }
    }
    placement::AssignSlots(&*map);
    Do(ApplyEvent{.map = *map, .origin = "walk", .expected_active = {}});
  }

  void Check() {
    if (durable_->stale()) return;
    const control::ClusterView view = durable_->View();
    ASSERT_GE(view.revision, seen_revision_);
    seen_revision_ = view.revision;
    int active = 0, open = 0;
    for (const auto& placement : view.placements) {
      if (placement.state == VersionState::kActive) ++active;
      if (placement::IsOpen(placement.state)) ++open;
      ASSERT_TRUE(
          placement::ValidatePlacement(placement.map, TestShapes()).ok());
    }
    ASSERT_LE(active, 1);
    ASSERT_LE(open, 1);
    ASSERT_GE(active, ever_active_ ? 1 : 0);
    if (active == 1) ever_active_ = true;
    CheckTrunks(view);
    CheckHistory();
    // The core is exactly what its store would give back.
    ASSERT_EQ(disk_.contents.placements.size(),
              durable_->core().driver().records().size());
    for (const PlacementRecord& record : disk_.contents.placements) {
      const PlacementRecord* ours =
          durable_->core().driver().Find(record.map.version);
      ASSERT_NE(ours, nullptr);
      ASSERT_EQ(ours->state, record.state);
    }
    ASSERT_LE(disk_.contents.history.size(), 50u + 8u);
  }

  // A version that a connected trunk has in flight, or could start a step
  // under, is still held by its workers.
  void CheckTrunks(const control::ClusterView& view) {
    for (const SimWorker& worker : workers_) {
      if (worker.registration.role != kTrunkRole || !worker.running ||
          !worker.identity) {
        continue;
      }
      const Member* member =
          durable_->core().membership().Find(worker.identity->worker);
      if (member == nullptr || !member->alive() ||
          member->record.incarnation != worker.identity->incarnation) {
        continue;
      }
      for (const PlacementVersion version :
           {worker.in_flight, worker.view.active}) {
        if (!version.valid()) continue;
        ASSERT_NE(view.FindPlacement(version), nullptr)
            << "version " << version << " of trunk " << worker.registration.name
            << " is gone";
      }
    }
  }

  void CheckHistory() {
    std::map<PlacementVersion, VersionState> last;
    uint64_t sequence = 0;
    for (const HistoryRecord& entry : disk_.contents.history) {
      ASSERT_TRUE(sequence == 0 || entry.sequence == sequence + 1);
      sequence = entry.sequence;
      const auto found = last.find(entry.version);
      if (found != last.end()) {
        ASSERT_TRUE(placement::IsLegalTransition(found->second, entry.state))
            << entry.version << " " << Name(found->second) << " -> "
            << Name(entry.state);
      }
      last[entry.version] = entry.state;
    }
  }

  RandomStream random_;
  CoreOptions options_;
  Disk disk_;
  std::unique_ptr<DurableCoordinator> durable_;
  std::vector<SimWorker> workers_;
  uint64_t processes_ = 1000;
  std::vector<control::Registration> sent_;  // that were taken, all of them
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  uint64_t seen_revision_ = 0;
  bool ever_active_ = false;
};

// In slices, so that they run beside each other.
class CoordinatorRandomWalk : public testing::TestWithParam<uint64_t> {};

TEST_P(CoordinatorRandomWalk, KeepsItsInvariantsAndConvergesWhenFaultsStop) {
  constexpr uint64_t kSeeds = 25;
  for (uint64_t seed = GetParam() * kSeeds; seed < (GetParam() + 1) * kSeeds;
       ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Walk walk(seed);
    walk.Run(300);
    if (!HasFailure()) walk.Converge();
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Slices, CoordinatorRandomWalk,
                         testing::Range<uint64_t>(0, 16));

}  // namespace
}  // namespace trunkline::coordinator
