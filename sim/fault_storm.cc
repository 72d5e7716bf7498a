#include "sim/fault_storm.h"

#include "absl/strings/str_cat.h"

namespace trunkline::sim {

using absl::Milliseconds;
using absl::Seconds;

FaultStorm::FaultStorm(SimCluster* cluster, SimAdmin* admin)
    : cluster_(cluster),
      admin_(admin),
      world_(cluster->world()),
      fault_pause_most_(world_.Between(Milliseconds(100), Seconds(3))),
      admin_pause_most_(world_.Between(Milliseconds(100), Seconds(3))),
      breaks_processes_(world_.Chance(0.8)),
      breaks_network_(world_.Chance(0.7)),
      breaks_store_(world_.Chance(0.4)),
      breaks_machines_(world_.Chance(0.4)) {
  cluster_->disk().SetOnTorn([this] {
    // The process died in the write: before it could say anything.
    SimCoordinator* const leader = cluster_->leader();
    if (leader == nullptr) return;
    const Place place = leader->place();
    world_.After(absl::ZeroDuration(), [this, place] {
      cluster_->Kill(place, false);
      world_.After(Milliseconds(200),
                   [this, place] { cluster_->StartProcess(place); });
    });
  });
}

void FaultStorm::Start() {
  Later(Milliseconds(500), &FaultStorm::BreakSomething);
  Later(Milliseconds(300), &FaultStorm::OperateSomething);
}

void FaultStorm::Later(absl::Duration delay, void (FaultStorm::*what)()) {
  world_.After(delay, [this, alive = alive_, what] {
    if (*alive) (this->*what)();
  });
}

Place FaultStorm::AnyProcess() { return world_.Pick(cluster_->processes()); }

void FaultStorm::OperateSomething() {
  admin_->DoSomething();
  Later(world_.Between(Milliseconds(10), admin_pause_most_),
        &FaultStorm::OperateSomething);
}

void FaultStorm::BreakSomething() {
  Later(world_.Between(Milliseconds(10), fault_pause_most_),
        &FaultStorm::BreakSomething);
  const uint64_t what = world_.Below(100);
  ++faults_;
  if (what < 40 && breaks_processes_) {
    BreakProcess();
  } else if (what < 70 && breaks_network_) {
    BreakNetwork();
  } else if (what < 85 && breaks_store_) {
    BreakStore();
  } else if (breaks_machines_) {
    BreakMachine();
  }
}

void FaultStorm::BreakProcess() {
  const Place place = AnyProcess();
  const uint64_t what = world_.Below(100);
  if (what < 45) {
    cluster_->Kill(place, /*silent=*/world_.Chance(0.3));
    // Back at once (a crash loop's first turn), after a while, or long after
    // the cluster has given it up.
    const absl::Duration away =
        world_.Chance(0.3)   ? world_.Between(Milliseconds(1), Milliseconds(50))
        : world_.Chance(0.7) ? world_.Between(Milliseconds(50), Seconds(3))
                             : world_.Between(Seconds(3), Seconds(12));
    SimCluster* const cluster = cluster_;
    world_.After(away, [cluster, place] { cluster->StartProcess(place); });
  } else if (what < 75) {
    cluster_->Pause(place);
    const absl::Duration away =
        world_.Chance(0.5) ? world_.Between(Milliseconds(5), Milliseconds(300))
                           : world_.Between(Milliseconds(300), Seconds(6));
    SimCluster* const cluster = cluster_;
    world_.After(away, [cluster, place] { cluster->Resume(place); });
  } else if (what < 90) {
    // Forward only: a monotonic clock does not go back. The wall clock does.
    const absl::Duration monotonic =
        world_.Chance(0.5) ? absl::ZeroDuration()
                           : world_.Between(Milliseconds(1), Seconds(8));
    cluster_->JumpClock(place, monotonic,
                        world_.Between(-absl::Hours(3), absl::Hours(3)));
  } else {
    cluster_->Terminate(place);
  }
}

void FaultStorm::BreakNetwork() {
  Network& network = cluster_->network();
  const Place a = AnyProcess();
  const Place b = AnyProcess();
  if (a == b) return;
  const absl::Duration length =
      world_.Chance(0.5) ? world_.Between(Milliseconds(10), Milliseconds(700))
                         : world_.Between(Milliseconds(700), Seconds(6));
  std::vector<std::pair<Place, Place>> cut;
  const uint64_t what = world_.Below(100);
  if (what < 30) {
    cut = {{a, b}};  // half-open
  } else if (what < 55) {
    cut = {{a, b}, {b, a}};
  } else if (what < 75) {  // alone
    for (const Place other : cluster_->processes()) {
      if (other == a) continue;
      cut.push_back({a, other});
      cut.push_back({other, a});
    }
  } else if (what < 85) {  // two halves
    for (const Place x : cluster_->processes()) {
      for (const Place y : cluster_->processes())
        if ((x % 2) != (y % 2)) cut.push_back({x, y});
    }
  } else {
    network.SetSlow(a, b, world_.Between(Milliseconds(1), Milliseconds(400)));
    world_.Trace(network.name(a), " -> ", network.name(b), " is slow");
    return;
  }
  world_.Trace("cut around ", network.name(a), ", ", cut.size(), " ways");
  for (const auto& [from, to] : cut) network.SetCut(from, to, true);
  world_.After(length, [&network, cut] {
    for (const auto& [from, to] : cut) network.SetCut(from, to, false);
  });
}

// A coordinator does not reach the store, or does not hear it, or both.
void FaultStorm::CutFromStore() {
  Network& network = cluster_->network();
  const Place coordinator = cluster_->PlaceOf(
      SimCluster::Kind::kCoordinator,
      static_cast<int>(world_.Below(
          static_cast<uint64_t>(cluster_->options().coordinators))));
  const Place store = cluster_->store_place();
  if (world_.Chance(0.6)) {
    // Somebody deletes the key: the leader believes in its lease for a while.
    world_.Trace("the leader key is gone");
    return cluster_->DropLeaderKey();
  }
  const uint64_t ways = 1 + world_.Below(3);
  world_.Trace(network.name(coordinator), " is cut off from the store, ways ",
               ways);
  if ((ways & 1) != 0) network.SetCut(coordinator, store, true);
  if ((ways & 2) != 0) network.SetCut(store, coordinator, true);
  world_.After(world_.Between(Milliseconds(50), Seconds(6)),
               [&network, coordinator, store] {
                 network.SetCut(coordinator, store, false);
                 network.SetCut(store, coordinator, false);
               });
}

void FaultStorm::BreakStore() {
  SimDisk& disk = cluster_->disk();
  const uint64_t what = world_.Below(100);
  const int coordinators = cluster_->options().coordinators;
  if (coordinators > 1 && world_.Chance(0.5)) return CutFromStore();
  world_.Trace("the store fails, kind ", what);
  if (what < 30) {
    disk.FailNextWrite(SimDisk::WriteFault::kBefore);
  } else if (what < 60) {
    disk.FailNextWrite(SimDisk::WriteFault::kAfter);
  } else if (what < 75) {
    disk.FailNextWrite(SimDisk::WriteFault::kTorn);
  } else {
    disk.SetUnreadable(true);
    world_.After(world_.Between(Milliseconds(10), Seconds(3)),
                 [&disk] { disk.SetUnreadable(false); });
  }
}

void FaultStorm::BreakMachine() {
  const int index = static_cast<int>(
      world_.Below(static_cast<uint64_t>(cluster_->options().experts)));
  ExpertMachine& machine = cluster_->expert_machine(index);
  const absl::Duration length = world_.Between(Milliseconds(100), Seconds(5));
  const uint64_t what = world_.Below(4);
  world_.Trace(machine.name, "'s machine fails, kind ", what);
  if (what == 0) {
    machine.disk_broken = true;
    world_.After(length, [&machine] { machine.disk_broken = false; });
  } else if (what == 1) {
    // Somebody else takes the memory. A worker without a limit notices nothing.
    machine.memory_taken = machine.memory_bytes;
    world_.After(length, [&machine] { machine.memory_taken = 0; });
  } else if (what == 2) {
    machine.sends_rotten = true;
    world_.After(length, [&machine] { machine.sends_rotten = false; });
  } else {
    machine.speed = 0.02;
    world_.After(length, [&machine] { machine.speed = 1; });
  }
}

}  // namespace trunkline::sim
