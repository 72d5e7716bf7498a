#pragma once

// Registrations and a driven core for tests of the coordinator: time moves only
// when the test says so.

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <string>
#include <vector>

#include "control/status_to_grpc.h"
#include "coordinator/coordinator.h"

namespace trunkline::coordinator {

inline std::vector<placement::MoeLayerShape> TestShapes() {
  return {{.layer = LayerIndex(1), .experts = 8, .expert_bytes = 100},
          {.layer = LayerIndex(4), .experts = 8, .expert_bytes = 100}};
}

// Each is another process's.
inline control::Registration TestRegistration(const std::string& name,
                                              control::Role role) {
  static std::atomic<uint64_t> processes{0};
  control::Registration registration;
  registration.process = ++processes;
  registration.name = name;
  registration.role = role;
  registration.data_address = "inprocess://" + name;
  registration.api_address = name + ":80";
  registration.model_digest = "digest-a";
  registration.numerics_class = "portable";
  registration.self_check_digest = "check-1";
  registration.failure_domain = "host-" + name;
  registration.moe_layers = TestShapes();
  return registration;
}

inline StoreContents EmptyContents() {
  StoreContents contents;
  contents.cluster.cluster_id = 77;
  contents.cluster.epoch = 1;
  return contents;
}

// Writes a change over contents like a store does.
inline void ApplyChange(const StoreChange& change, StoreContents* contents) {
  if (change.cluster) contents->cluster = *change.cluster;
  const auto put = [](auto& list, const auto& record, auto key) {
    auto it = list.begin();
    while (it != list.end() && key(*it) < key(record)) ++it;
    if (it != list.end() && key(*it) == key(record)) {
      *it = record;
    } else {
      list.insert(it, record);
    }
  };
  for (const WorkerRecord& worker : change.workers) {
    put(contents->workers, worker, [](const WorkerRecord& w) { return w.id; });
  }
  for (const PlacementRecord& placement : change.placements) {
    put(contents->placements, placement,
        [](const PlacementRecord& p) { return p.map.version; });
  }
  for (const HistoryRecord& entry : change.history) {
    contents->history.push_back(entry);
  }
  for (const WorkerId worker : change.forgotten_workers) {
    std::erase_if(contents->workers,
                  [&](const WorkerRecord& w) { return w.id == worker; });
  }
  for (const PlacementVersion version : change.forgotten_placements) {
    std::erase_if(contents->placements, [&](const PlacementRecord& p) {
      return p.map.version == version;
    });
  }
  std::erase_if(contents->history, [&](const HistoryRecord& entry) {
    return entry.sequence < change.history_from;
  });
}

// A core, its store as a value, and workers that behave: they load what they
// are told to and follow every view, unless the test stops them.
class DrivenCluster {
 public:
  explicit DrivenCluster(CoreOptions options = {}) : options_(options) {
    contents_ = EmptyContents();
    core_ = std::make_unique<Coordinator>(options_, contents_, 1, At());
  }

  Moment At() const {
    return {.now = absl::UnixEpoch() + elapsed_,
            .wall = absl::FromUnixSeconds(1'800'000'000) + elapsed_};
  }

  Reply Do(const Event& event) { return Take(core_->Step(event, At())); }
  void Tick() { Take(core_->Tick(At())); }
  void Wait(absl::Duration by) {
    elapsed_ += by;
    Tick();
  }

  absl::StatusOr<control::Identity> Join(const std::string& name,
                                         control::Role role) {
    return Join(TestRegistration(name, role));
  }
  // As a worker does: a name that another process has is taken from it.
  absl::StatusOr<control::Identity> Join(control::Registration registration) {
    Reply reply = Do(RegisterEvent{.registration = registration});
    if (absl::IsAborted(reply.status)) {
      registration.replaces = control::NameHeldBy(reply.status);
      reply = Do(RegisterEvent{.registration = registration});
    }
    if (!reply.status.ok()) return reply.status;
    const auto identity = std::get<RegisterReply>(reply.body).identity;
    identities_[registration.name] = identity;
    return identity;
  }
  WorkerId Id(const std::string& name) const {
    return identities_.at(name).worker;
  }

  // One heartbeat: READY for all that the view gives this worker.
  absl::Status Beat(const std::string& name, control::Report report = {}) {
    const control::ClusterView view = core_->View();
    const control::Identity& identity = identities_.at(name);
    control::Heartbeat heartbeat;
    heartbeat.worker = identity.worker;
    heartbeat.incarnation = identity.incarnation;
    heartbeat.cluster_id = identity.cluster_id;
    heartbeat.view_epoch = view.epoch;
    heartbeat.view_revision = view.revision;
    heartbeat.report = std::move(report);
    if (heartbeat.report.versions.empty() && loads_) {
      for (const control::PlacementView& placement : view.placements) {
        const auto workers = placement.map.Workers();
        if (std::count(workers.begin(), workers.end(), identity.worker) == 0) {
          continue;
        }
        heartbeat.report.versions.push_back(
            {.version = placement.map.version,
             .state = control::ShardState::kReady,
             .error = "",
             .bytes_loaded = 0,
             .bytes_total = 0});
      }
    }
    return Do(HeartbeatEvent{.heartbeat = heartbeat}).status;
  }
  // Workers load nothing from now on; heartbeats go on.
  void StopLoading() { loads_ = false; }

  // Everybody beats a few times, which is what it takes to finish a change.
  void Settle(const std::vector<std::string>& names, int rounds = 4) {
    for (int i = 0; i < rounds; ++i) {
      for (const std::string& name : names) Beat(name).IgnoreError();
      Tick();
    }
  }

  // The process dies and a new one reads the store.
  void Restart() {
    ++contents_.cluster.epoch;
    core_ = std::make_unique<Coordinator>(options_, contents_, 1, At());
  }

  control::ClusterView View() const { return core_->View(); }
  Coordinator& core() { return *core_; }
  const StoreContents& contents() const { return contents_; }
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  Reply Take(Actions actions) {
    ApplyChange(actions.change, &contents_);
    for (std::string& note : actions.notes) notes_.push_back(std::move(note));
    return actions.reply ? *std::move(actions.reply) : Reply();
  }

  const CoreOptions options_;
  StoreContents contents_;
  std::unique_ptr<Coordinator> core_;
  absl::Duration elapsed_ = absl::Seconds(1000);
  std::map<std::string, control::Identity> identities_;
  std::vector<std::string> notes_;
  bool loads_ = true;
};

inline CoreOptions TestOptions(int64_t expert_workers, int64_t replicas = 1) {
  CoreOptions options;
  options.driver.expert_workers = expert_workers;
  options.driver.replicas = replicas;
  return options;
}

inline constexpr auto kTrunkRole = control::Role::kTrunk;
inline constexpr auto kExpertRole = control::Role::kExpert;

}  // namespace trunkline::coordinator
