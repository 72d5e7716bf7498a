#include "sim/sim_expert.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "expert_worker/shard_frame.h"

namespace trunkline::sim {

using expert::ExpertKey;
using expert::StageProgress;
using expert::StageState;

void SimShards::Stage(PlacementVersion version, std::vector<ExpertKey> experts,
                      OnProgress on_progress) {
  const auto found = versions_.find(version);
  if (found != versions_.end() &&
      found->second.second.progress.state != StageState::kFailed)
    return;
  const uint64_t generation = next_generation_++;
  Staged staged;
  staged.experts = std::move(experts);
  staged.on_progress = std::move(on_progress);
  staged.progress.version = version;
  staged.progress.bytes_total =
      static_cast<int64_t>(staged.experts.size()) * kExpertBytes;
  versions_[version] = {generation, std::move(staged)};
  world_->After(machine_->load_time,
                [this, alive = alive_, version, generation] {
                  if (*alive)
                    run_([=, this] { LoadNext(version, generation, 0); });
                });
}

void SimShards::Retire(PlacementVersion version) { versions_.erase(version); }

std::set<ExpertKey> SimShards::Held() const {
  std::set<ExpertKey> held;
  for (const auto& [version, staged] : versions_) {
    const auto loaded =
        static_cast<size_t>(staged.second.progress.bytes_loaded / kExpertBytes);
    held.insert(
        staged.second.experts.begin(),
        staged.second.experts.begin() + static_cast<std::ptrdiff_t>(loaded));
  }
  return held;
}

void SimShards::LoadNext(PlacementVersion version, uint64_t generation,
                         size_t loaded) {
  const auto found = versions_.find(version);
  if (found == versions_.end() || found->second.first != generation) return;
  Staged& staged = found->second.second;
  if (loaded < staged.experts.size()) {
    // An expert that another version has loaded is in memory once.
    const std::set<ExpertKey> held = Held();
    const bool shared = held.contains(staged.experts[loaded]);
    const uint64_t bytes = held.size() * static_cast<uint64_t>(kExpertBytes) +
                           machine_->memory_taken;
    if (!shared && machine_->memory_bytes > 0 &&
        bytes + kExpertBytes > machine_->memory_bytes) {
      return Fail(&staged, absl::ResourceExhaustedError(absl::StrCat(
                               bytes, " bytes are held and the limit is ",
                               machine_->memory_bytes)));
    }
    if (machine_->asks_peers) return TakeFromPeer(version, generation);
    return LoadFromDisk(version, generation);
  }
  expert::Shard::Entries entries;
  for (size_t i = 0; i < staged.experts.size(); ++i)
    entries[staged.experts[i]] = staged.loaded[i];
  staged.progress.shard =
      std::make_shared<const expert::Shard>(std::move(entries));
  staged.progress.state = StageState::kReady;
  Tell(staged);
}

void SimShards::Fail(Staged* staged, absl::Status status) {
  staged->progress.state = StageState::kFailed;
  staged->progress.status = std::move(status);
  Tell(*staged);
}

void SimShards::LoadFromDisk(PlacementVersion version, uint64_t generation) {
  Staged& staged = versions_.at(version).second;
  if (machine_->disk_broken) {
    return Fail(
        &staged,
        absl::DataLossError("the checkpoint's bytes differ from their digest"));
  }
  ExpertKey from = staged.experts[staged.loaded.size()];
  if ((world_->has(PlantedBug::kStaleMap) && version.value > 1) ||
      machine_->loads_wrong)
    from.expert = staged.experts.front().expert;
  OnLoaded(version, generation, model_->Weights(from));
}

// As ExpertStore does where the checkpoint has no weights; here the disk is the
// last resort.
void SimShards::TakeFromPeer(PlacementVersion version, uint64_t generation) {
  const Staged& staged = versions_.at(version).second;
  const ExpertKey key = staged.experts[staged.loaded.size()];
  peers_->Fetch(
      model_->Request(key), [this, alive = alive_, version, generation, key](
                                absl::StatusOr<expert::FetchedExpert> fetched) {
        if (!*alive) return;
        run_([=, this,
              fetched = std::make_shared<absl::StatusOr<expert::FetchedExpert>>(
                  std::move(fetched))] {
          const auto found = versions_.find(version);
          if (found == versions_.end() || found->second.first != generation)
            return;
          world_->Trace(machine_->name, " asks for layer ", key.layer.value,
                        " expert ", key.expert.value, ": ",
                        fetched->status().ToString());
          ++(fetched->ok() ? machine_->from_peers : machine_->not_from_peers);
          if (!fetched->ok()) return LoadFromDisk(version, generation);
          OnLoaded(version, generation, model_->Weights(**fetched));
        });
      });
}

void SimShards::OnLoaded(PlacementVersion version, uint64_t generation,
                         std::shared_ptr<const kernels::MlpWeights> weights) {
  Staged& staged = versions_.at(version).second;
  staged.loaded.push_back(std::move(weights));
  staged.progress.bytes_loaded += kExpertBytes;
  const size_t loaded = staged.loaded.size();
  Tell(staged);
  world_->After(machine_->load_time,
                [this, alive = alive_, version, generation, loaded] {
                  if (*alive)
                    run_([=, this] { LoadNext(version, generation, loaded); });
                });
}

// The follower may retire or stage from inside, so it gets copies.
void SimShards::Tell(const Staged& staged) {
  const OnProgress tell = staged.on_progress;
  const StageProgress progress = staged.progress;
  tell(progress);
}

std::vector<StageProgress> SimShards::Versions() const {
  std::vector<StageProgress> versions;
  for (const auto& [version, staged] : versions_)
    versions.push_back(staged.second.progress);
  return versions;
}

namespace {

// Longer than most handovers take, shorter than an operator waits.
constexpr absl::Duration kHandoverTimeout = absl::Seconds(20);

expert::ExpertDataPath::Options PathOptions(const SimModel& model) {
  expert::ExpertDataPath::Options options;
  options.layers = model.worker_layers();
  options.digest_of = [&model](ExpertKey key) {
    return model.Request(key).digest;
  };
  return options;
}

control::Registration RegistrationOf(const SimModel& model,
                                     const ExpertMachine& machine) {
  control::Registration registration;
  registration.name = machine.name;
  registration.role = control::Role::kExpert;
  registration.data_address = absl::StrCat("sim://", machine.name);
  registration.model_digest = "simulated";
  registration.numerics_class = "portable";
  registration.self_check_digest = "exact";
  registration.failure_domain = machine.failure_domain;
  registration.memory_bytes = machine.memory_bytes;
  registration.speed = machine.speed;
  registration.moe_layers = model.shapes();
  return registration;
}

}  // namespace

SimExpert::SimExpert(World* world, Network* network, Fabric* fabric,
                     ControlPlane* plane, SimModel* model,
                     expert::ExpertMetrics* metrics, ExpertMachine* machine,
                     Hooks hooks, std::function<void()> on_refused)
    : world_(world),
      network_(network),
      machine_(machine),
      hooks_(std::move(hooks)),
      on_refused_(std::move(on_refused)),
      clock_(world, absl::Seconds(static_cast<int64_t>(world->Below(100000)))),
      transport_(fabric, world, machine->place, [this] { Wake(); }),
      path_(PathOptions(*model), kernels::KernelContext{&pool_}, &transport_,
            metrics, &clock_),
      peers_(world, network, fabric, machine->place, &clock_),
      shards_(world, model, machine, &peers_,
              [this](std::function<void()> work) {
                commands_.push_back(std::move(work));
                Wake();
              }),
      follower_(
          &shards_, this, [this] { client_.ReportNow(); },
          absl::Milliseconds(500), &clock_),
      client_(world, network, plane, machine->place,
              RegistrationOf(*model, *machine),
              {.on_registered =
                   [this](const control::Identity& identity) {
                     worker_ = identity.worker;
                     incarnation_ = identity.incarnation;
                     follower_.OnRegistered(identity);
                   },
               .on_view =
                   [this](const control::ClusterView& view) {
                     hooks_.on_view(*this, view);
                     control::ClusterView followed = view;
                     if (world_->has(PlantedBug::kDropOldAtOnce)) {
                       std::erase_if(followed.placements, [](const auto& p) {
                         return p.state == control::PlacementState::kDraining;
                       });
                     }
                     peers_.UpdateView(view, worker_);
                     follower_.OnView(followed);
                     LookDrained();
                   },
               .make_report =
                   [this] {
                     control::Report report;
                     report.versions = follower_.Reports();
                     if (world_->has(PlantedBug::kReadyWhileLoading)) {
                       for (auto& version : report.versions)
                         version.state = control::ShardState::kReady;
                     }
                     report.wants_drain = leaving_;
                     return report;
                   },
               .on_refused =
                   [this](const absl::Status& status) {
                     world_->Trace(name(), " is refused: ", status.ToString());
                     world_->After(absl::ZeroDuration(), on_refused_);
                   }}) {
  network_->SetAlive(machine_->place, true);
  transport_.SetTouch([this](transport::Message& message) {
    if (machine_->sends_rotten) RotRows(message);
  });
  transport_.Listen(machine_->name).IgnoreError();
}

// What is wrong is sealed as if it were right: only the digest of the whole
// expert tells.
void SimExpert::RotRows(transport::Message& message) const {
  const std::span<std::byte> bytes(message.data(), message.size);
  if (!expert::IsShardFrame(bytes)) return;
  const auto frame = expert::DecodeShardFrame(bytes);
  if (!frame.ok() || frame->rows.empty()) return;
  // The sign of the first weight that has one.
  for (size_t at = expert::kShardHeaderBytes + 3; at < bytes.size(); at += 4) {
    if (bytes[at] == std::byte{0}) continue;
    bytes[at] ^= std::byte{0x80};
    break;
  }
  expert::SealShardFrame(bytes);
}

SimExpert::~SimExpert() { *alive_ = false; }

void SimExpert::Resume() {
  client_.Resume();
  Wake();
}

void SimExpert::Terminate(std::function<void()> ended) {
  leaving_ = true;
  ended_ = std::move(ended);
  client_.ReportNow();
  world_->After(kHandoverTimeout, [this, alive = alive_] {
    if (*alive && ended_ != nullptr) Leave();
  });
}

// As ExpertServer::Shutdown: once nobody needs this worker it leaves and ends.
void SimExpert::LookDrained() {
  if (!leaving_ || ended_ == nullptr ||
      follower_.WaitDrained(absl::ZeroDuration()) ==
          expert::PlacementFollower::Handover::kTimedOut)
    return;
  Leave();
}

void SimExpert::Leave() {
  client_.Leave();
  world_->After(absl::Milliseconds(50), std::exchange(ended_, nullptr));
}

void SimExpert::SetIdentity(uint64_t cluster_id, WorkerId worker) {
  commands_.push_back(
      [this, cluster_id, worker] { path_.SetIdentity(cluster_id, worker); });
  Wake();
}

void SimExpert::Serve(PlacementVersion version,
                      std::shared_ptr<const expert::Shard> shard,
                      std::function<void()> serving) {
  commands_.push_back(
      [this, version, shard = std::move(shard), serving = std::move(serving)] {
        serving_[version] = shard->Experts();
        hooks_.on_serve(*this, version, serving_[version]);
        path_.Serve(version, shard);
        if (serving) serving();
      });
  Wake();
}

void SimExpert::Retire(PlacementVersion version) {
  commands_.push_back([this, version] {
    if (serving_.contains(version)) hooks_.on_retire(*this, version);
    serving_.erase(version);
    path_.Retire(version);
  });
  Wake();
}

void SimExpert::Wake() {
  if (turn_scheduled_) return;
  turn_scheduled_ = true;
  world_->At(std::max(busy_until_, world_->now()), [this, alive = alive_] {
    if (!*alive) return;
    turn_scheduled_ = false;
    if (!network_->paused(place())) Turn();
  });
}

// As ExpertEngine::Loop: commands, then what the transport has, then a batch.
void SimExpert::Turn() {
  std::vector<std::function<void()>> commands;
  commands.swap(commands_);
  for (const auto& command : commands) command();
  const absl::Duration takes =
      world_->Between(absl::Microseconds(5), machine_->batch_time_most) /
      machine_->speed;
  transport_.SetSendDelay(takes);
  const uint64_t batches = path_.core().counters().batches;
  path_.Turn(absl::ZeroDuration());
  if (path_.core().counters().batches != batches)
    busy_until_ = world_->now() + takes;
  if (!path_.idle() || !commands_.empty() || transport_.has_events()) Wake();
}

}  // namespace trunkline::sim
