#include "sim/sim_cluster.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace trunkline::sim {

SimCluster::SimCluster(World* world, const ClusterOptions& options)
    : world_(world),
      options_(options),
      network_(world, options.network),
      fabric_(world, &network_),
      plane_(world, &network_),
      disk_(world, SplitMix64(world->seed()) | 1),
      model_(world->seed(), options.moe_layers, options.experts_per_layer,
             options.top_k),
      metrics_(registry_),
      checker_(world, &network_, &model_, &disk_,
               options.coordinator.core.driver.trunk_grace, StateForChecker()),
      clients_(
          world, &model_, [this] { return trunks(); },
          [this](const std::string& invariant, const std::string& what) {
            checker_.Fail(invariant, what);
          }) {
  for (int i = 0; i < options.coordinators; ++i) {
    all_.push_back(network_.Add(absl::StrCat("coordinator-", i)));
    plane_.AddPlace(all_.back());
  }
  for (int i = 0; i < options.trunks; ++i) {
    auto machine = std::make_unique<TrunkMachine>();
    machine->name = absl::StrCat("trunk-", i);
    machine->place = network_.Add(machine->name);
    all_.push_back(machine->place);
    trunk_machines_.push_back(std::move(machine));
  }
  for (int i = 0; i < options.experts; ++i) {
    auto machine = std::make_unique<ExpertMachine>();
    machine->name = absl::StrCat("expert-", i);
    machine->place = network_.Add(machine->name);
    machine->failure_domain = absl::StrCat("host-", i);
    machine->memory_bytes =
        options.memory_bytes[i % options.memory_bytes.size()];
    machine->load_time = options.load_time;
    machine->asks_peers = options.experts_from_peers;
    all_.push_back(machine->place);
    expert_machines_.push_back(std::move(machine));
  }
  lease_.store = network_.Add("store");
  network_.SetAlive(lease_.store, true);
  coordinators_.resize(static_cast<size_t>(options.coordinators));
  trunks_.resize(trunk_machines_.size());
  experts_.resize(expert_machines_.size());
  plane_.SetLate(options.late_registrations);
  fabric_.OnSend([this](Place from, Place to, uint64_t pipe,
                        const transport::Message& message) {
    checker_.OnSend(from, to, pipe, message);
  });
  disk_.SetOnCommit(
      [this](const auto& before, const auto& change, const auto& after) {
        checker_.OnCommit(before, change, after);
      });
}

SimCluster::~SimCluster() = default;

ClusterState SimCluster::StateForChecker() {
  ClusterState state;
  state.trunks = [this] {
    std::vector<const SimTrunk*> running;
    for (const auto& trunk : trunks_)
      if (trunk != nullptr) running.push_back(trunk.get());
    return running;
  };
  state.experts = [this] {
    std::vector<const SimExpert*> running;
    for (const auto& expert : experts_)
      if (expert != nullptr) running.push_back(expert.get());
    return running;
  };
  state.leader = [this]() -> const coordinator::DurableCoordinator* {
    SimCoordinator* const now = leader();
    return now == nullptr ? nullptr : now->durable();
  };
  state.leader_time = [this] {
    SimCoordinator* const now = leader();
    return now == nullptr ? coordinator::Moment() : now->At();
  };
  return state;
}

SimCoordinator* SimCluster::leader() {
  for (const auto& coordinator : coordinators_) {
    if (coordinator != nullptr && coordinator->leads() &&
        coordinator->durable()->core().cluster().epoch == disk_.epoch())
      return coordinator.get();
  }
  return nullptr;
}

std::vector<SimTrunk*> SimCluster::trunks() {
  std::vector<SimTrunk*> running;
  for (const auto& trunk : trunks_)
    if (trunk != nullptr) running.push_back(trunk.get());
  return running;
}

std::vector<SimExpert*> SimCluster::experts() {
  std::vector<SimExpert*> running;
  for (const auto& expert : experts_)
    if (expert != nullptr) running.push_back(expert.get());
  return running;
}

Place SimCluster::PlaceOf(Kind kind, int index) const {
  switch (kind) {
    case Kind::kCoordinator:
      return all_[index];
    case Kind::kTrunk:
      return all_[options_.coordinators + index];
    case Kind::kExpert:
      return all_[options_.coordinators + options_.trunks + index];
  }
  return 0;
}

void SimCluster::DropLeaderKey() {
  lease_.end = absl::InfinitePast();
  for (const auto& coordinator : coordinators_)
    if (coordinator != nullptr) coordinator->OnVacancy();
}

uint64_t SimCluster::canary_rollbacks() const {
  uint64_t rollbacks = 0;
  for (const auto& coordinator : coordinators_)
    if (coordinator != nullptr) rollbacks += coordinator->canary_rollbacks();
  return rollbacks;
}

SimCluster::Kind SimCluster::KindOf(Place place) const {
  if (static_cast<int>(place) < options_.coordinators)
    return Kind::kCoordinator;
  return static_cast<int>(place) < options_.coordinators + options_.trunks
             ? Kind::kTrunk
             : Kind::kExpert;
}

bool SimCluster::running(Place place) const { return network_.alive(place); }

void SimCluster::Boot() {
  for (const Place place : all_) StartProcess(place);
}

void SimCluster::StartProcess(Place place) {
  if (running(place)) return;
  const int index = static_cast<int>(place);
  switch (KindOf(place)) {
    case Kind::kCoordinator:
      StartCoordinator(index);
      break;
    case Kind::kTrunk:
      StartTrunk(index - options_.coordinators);
      break;
    case Kind::kExpert:
      StartExpert(index - options_.coordinators - options_.trunks);
      break;
  }
  world_->Trace(network_.name(place), " starts");
}

void SimCluster::StartCoordinator(int index) {
  SimCoordinator::Options options = options_.coordinator;
  options.alone = options_.coordinators == 1;
  options.on_publish = [this](const control::ClusterView& view) {
    checker_.OnPublish(view);
  };
  options.on_mismatch = [this] {
    if (checker_.answers_suspended()) return;
    checker_.Fail("no placement changes the canary's answer", "one did");
  };
  const Place place = all_[index];
  coordinators_[index] = std::make_unique<SimCoordinator>(
      world_, &network_, &disk_, &lease_, place, options);
  plane_.SetRunning(place, coordinators_[index].get());
}

void SimCluster::StartTrunk(int index) {
  const TrunkMachine* const machine = trunk_machines_[index].get();
  SimTrunk::Hooks hooks;
  hooks.on_view = [this](const SimTrunk& t, const control::ClusterView& v) {
    checker_.OnTrunkView(t, v);
  };
  hooks.on_step = [this](const SimTrunk& t, PlacementVersion v) {
    checker_.OnStep(t, v);
  };
  hooks.on_combined = [this](const SimTrunk& t, const trunk::MoeCall& call,
                             const std::vector<Row>& rows) {
    checker_.OnCombined(t, call, rows);
  };
  hooks.on_step_failed = [this](const SimTrunk& t, const absl::Status& s) {
    world_->Trace(t.name(), ": step failed: ", s.ToString());
    checker_.OnStepFailed(t, s);
  };
  const Place place = machine->place;
  trunks_[index] = std::make_unique<SimTrunk>(
      world_, &network_, &fabric_, &plane_, &model_, machine, options_.trunk,
      std::move(hooks), [this, place] { OnRefused(place); });
}

void SimCluster::StartExpert(int index) {
  ExpertMachine* const machine = expert_machines_[index].get();
  SimExpert::Hooks hooks;
  hooks.on_serve = [this](const SimExpert& e, PlacementVersion v,
                          const std::vector<expert::ExpertKey>& keys) {
    world_->Trace(e.name(), " serves version ", v.value);
    checker_.OnServe(e, v, keys);
  };
  hooks.on_retire = [this](const SimExpert& e, PlacementVersion v) {
    world_->Trace(e.name(), " drops version ", v.value);
    checker_.OnRetire(e, v);
  };
  hooks.on_view = [this](const SimExpert& e, const control::ClusterView& v) {
    checker_.OnExpertView(e, v);
  };
  const Place place = machine->place;
  experts_[index] = std::make_unique<SimExpert>(
      world_, &network_, &fabric_, &plane_, &model_, &metrics_, machine,
      std::move(hooks), [this, place] { OnRefused(place); });
}

// A place has one process at a time, so none of them is ever in another's way.
void SimCluster::OnRefused(Place place) {
  if (!running(place)) return;
  checker_.Fail("a live process keeps its name", network_.name(place));
  OnProcessGone(place);
}

void SimCluster::Kill(Place place, bool silent) {
  if (!running(place)) return;
  world_->Trace(network_.name(place), " is killed", silent ? " silently" : "");
  const int index = static_cast<int>(place);
  switch (KindOf(place)) {
    case Kind::kCoordinator:
      plane_.SetRunning(place, nullptr);
      coordinators_[index].reset();
      break;
    case Kind::kTrunk: {
      auto& trunk = trunks_[index - options_.coordinators];
      if (silent) trunk->VanishSilently();
      trunk.reset();
      clients_.OnTrunkEnd(place);
      break;
    }
    case Kind::kExpert: {
      auto& expert = experts_[index - options_.coordinators - options_.trunks];
      if (silent) expert->VanishSilently();
      expert.reset();
      break;
    }
  }
  checker_.OnProcessEnd(place);
  network_.SetAlive(place, false);
}

// A process ended by itself.
void SimCluster::OnProcessGone(Place place) {
  if (!running(place)) return;
  Kill(place, false);
  if (!supervised_ || options_.restart_after == absl::InfiniteDuration())
    return;
  world_->After(options_.restart_after, [this, place] {
    if (supervised_) StartProcess(place);
  });
}

void SimCluster::Pause(Place place) {
  if (!running(place) || network_.paused(place)) return;
  world_->Trace(network_.name(place), " is stopped");
  network_.SetPaused(place, true);
}

void SimCluster::Resume(Place place) {
  if (!running(place) || !network_.paused(place)) return;
  world_->Trace(network_.name(place), " goes on");
  network_.SetPaused(place, false);
  const int index = static_cast<int>(place);
  switch (KindOf(place)) {
    case Kind::kCoordinator:
      coordinators_[index]->Resume();
      break;
    case Kind::kTrunk:
      trunks_[index - options_.coordinators]->Resume();
      break;
    case Kind::kExpert:
      experts_[index - options_.coordinators - options_.trunks]->Resume();
      break;
  }
}

void SimCluster::JumpClock(Place place, absl::Duration monotonic,
                           absl::Duration wall) {
  if (!running(place)) return;
  world_->Trace("the clock of ", network_.name(place), " jumps by ",
                absl::FormatDuration(monotonic), " and ",
                absl::FormatDuration(wall));
  const int index = static_cast<int>(place);
  switch (KindOf(place)) {
    case Kind::kCoordinator:
      coordinators_[index]->JumpClock(monotonic, wall);
      break;
    case Kind::kTrunk:
      trunks_[index - options_.coordinators]->JumpClock(monotonic);
      break;
    case Kind::kExpert:
      experts_[index - options_.coordinators - options_.trunks]->JumpClock(
          monotonic);
      break;
  }
}

void SimCluster::Terminate(Place place) {
  if (!running(place) || KindOf(place) != Kind::kExpert) return;
  world_->Trace(network_.name(place), " is asked to end");
  experts_[static_cast<int>(place) - options_.coordinators - options_.trunks]
      ->Terminate([this, place] {
        world_->Trace(network_.name(place), " has handed over");
        OnProcessGone(place);
      });
}

void SimCluster::RunUntil(absl::Time end) {
  while (violation().empty() && world_->RunOne(end)) {
  }
}

bool SimCluster::RunUntilDone(absl::Duration within,
                              const std::function<bool()>& done) {
  const absl::Time end = world_->now() + within;
  while (violation().empty()) {
    if (done()) return true;
    const absl::Time next =
        std::min(end, world_->now() + absl::Milliseconds(50));
    RunUntil(next);
    if (world_->now() >= end) return violation().empty() && done();
  }
  return false;
}

void SimCluster::Heal() {
  network_.HealAll();
  plane_.SetLate(0);
  disk_.SetUnreadable(false);
  disk_.FailNextWrite(SimDisk::WriteFault::kNone);
  for (const auto& machine : expert_machines_) {
    machine->disk_broken = false;
    machine->sends_rotten = false;
    machine->memory_taken = 0;
  }
  for (const Place place : all_) {
    Resume(place);
    StartProcess(place);
  }
}

std::string SimCluster::WhyNotSettled() const {
  const SimCoordinator* const now = const_cast<SimCluster*>(this)->leader();
  if (now == nullptr) return "no coordinator leads";
  if (now->durable()->stale()) return "the store does not answer";
  const control::ClusterView view = now->durable()->View();
  if (!view.active.valid()) return "no version is active: " + view.waiting_for;
  if (!view.waiting_for.empty()) return view.waiting_for;
  if (view.placements.size() != 1) {
    std::string why =
        absl::StrCat(view.placements.size(), " versions live, among them ",
                     view.placements.front().map.version.value, " ",
                     Name(view.placements.front().state), " at view ",
                     view.epoch, ".", view.revision);
    for (const auto& [id, member] :
         now->durable()->core().membership().members()) {
      if (!member.is(control::Role::kTrunk)) continue;
      absl::StrAppend(
          &why, ", '", member.name(), "' ", member.alive() ? "at" : "gone at",
          " view ", member.followed_epoch, ".", member.followed_revision,
          member.oldest_in_flight.valid()
              ? absl::StrCat(" in version ", member.oldest_in_flight.value)
              : "");
    }
    return why;
  }
  return "";
}

}  // namespace trunkline::sim
