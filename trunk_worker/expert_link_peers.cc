#include "trunk_worker/expert_link_peers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace trunkline::trunk {

namespace {

bool Contains(const std::vector<WorkerId>& workers, WorkerId worker) {
  return std::binary_search(workers.begin(), workers.end(), worker);
}

bool Covers(const std::vector<WorkerId>& workers,
            const placement::LayerPlacement& layer) {
  for (const std::vector<placement::Replica>& replicas : layer.replicas) {
    const bool covered = std::any_of(replicas.begin(), replicas.end(),
                                     [&](const placement::Replica& r) {
                                       return Contains(workers, r.worker);
                                     });
    if (!covered) return false;
  }
  return true;
}

}  // namespace

std::vector<ExpertPeers::Loss> ExpertPeers::ApplyView(
    const control::ClusterView& view, absl::Time now) {
  std::vector<Loss> losses;
  const auto lose = [&](std::optional<Loss> loss) {
    if (loss.has_value()) losses.push_back(*std::move(loss));
  };
  std::map<WorkerId, Peer> kept;
  for (const control::WorkerView& worker : view.workers) {
    if (worker.role != control::Role::kExpert) continue;
    const auto found = peers_.find(worker.id);
    Peer peer;
    if (found == peers_.end()) {
      peer.backoff = options_.backoff_first;
    } else {
      peer = std::move(found->second);
      peers_.erase(found);
    }
    const bool moved =
        !peer.address.empty() && peer.address != worker.data_address;
    if (moved)
      lose(TakeDown(worker.id, peer,
                    absl::StrCat("moved to ", worker.data_address)));
    const bool back = worker.alive && !peer.alive;
    if (moved || back || peer.incarnation != worker.incarnation) {
      // Started anew or heard again: what went wrong before says nothing.
      peer.next_dial = now;
      peer.backoff = options_.backoff_first;
    }
    peer.name = worker.name;
    peer.address = worker.data_address;
    peer.incarnation = worker.incarnation;
    peer.alive = worker.alive;
    peer.refused.clear();
    peer.versions.clear();
    for (const control::VersionReport& report : worker.versions)
      peer.versions[report.version] = report.state;
    kept.emplace(worker.id, std::move(peer));
  }
  for (auto& [worker, peer] : peers_)
    lose(TakeDown(worker, peer, "no longer a member of the cluster"));
  peers_ = std::move(kept);
  ++generation_;
  Dial(now);
  return losses;
}

std::vector<ExpertPeers::Loss> ExpertPeers::Clear(const std::string& why) {
  std::vector<Loss> losses;
  for (auto& [worker, peer] : peers_) {
    if (std::optional<Loss> loss = TakeDown(worker, peer, why))
      losses.push_back(*std::move(loss));
  }
  peers_.clear();
  ++generation_;
  return losses;
}

void ExpertPeers::Dial(absl::Time now) {
  for (auto& [worker, peer] : peers_) {
    if (peer.state != State::kDown || !peer.alive || now < peer.next_dial)
      continue;
    const absl::StatusOr<transport::ConnectionId> connection =
        transport_->Connect(peer.address);
    if (!connection.ok()) {
      peer.last_error = std::string(connection.status().message());
      Postpone(peer, now);
      continue;
    }
    peer.state = State::kConnecting;
    peer.connection = *connection;
    workers_[*connection] = worker;
  }
}

absl::Time ExpertPeers::next_dial() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [unused, peer] : peers_) {
    if (peer.state == State::kDown && peer.alive)
      next = std::min(next, peer.next_dial);
  }
  return next;
}

void ExpertPeers::OnConnected(transport::ConnectionId connection) {
  const auto found = workers_.find(connection);
  if (found == workers_.end()) return;  // hung up on meanwhile
  peers_.at(found->second).state = State::kUp;
  ++generation_;
}

std::optional<ExpertPeers::Loss> ExpertPeers::OnDown(
    transport::ConnectionId connection, const absl::Status& status,
    absl::Time now) {
  const auto found = workers_.find(connection);
  if (found == workers_.end()) return std::nullopt;
  const WorkerId worker = found->second;
  Peer& peer = peers_.at(worker);
  const bool was_up = peer.state == State::kUp;
  const std::string why =
      absl::StrCat(was_up ? "connection lost: " : "can not connect: ",
                   std::string(status.message()));
  workers_.erase(found);
  peer.state = State::kDown;
  peer.last_error = why;
  Postpone(peer, now);
  ++generation_;
  if (!was_up) return std::nullopt;
  return Loss{worker, Describe(worker)};
}

std::optional<ExpertPeers::Loss> ExpertPeers::HangUp(WorkerId worker,
                                                     const std::string& why,
                                                     absl::Time now) {
  const auto found = peers_.find(worker);
  if (found == peers_.end()) return std::nullopt;
  std::optional<Loss> loss = TakeDown(worker, found->second, why);
  Postpone(found->second, now);
  return loss;
}

std::optional<ExpertPeers::Loss> ExpertPeers::TakeDown(WorkerId worker,
                                                       Peer& peer,
                                                       const std::string& why) {
  if (peer.state == State::kDown) return std::nullopt;
  const bool was_up = peer.state == State::kUp;
  workers_.erase(peer.connection);
  transport_->Disconnect(peer.connection);
  peer.state = State::kDown;
  peer.last_error = why;
  ++generation_;
  if (!was_up) return std::nullopt;
  return Loss{worker, absl::StrCat("'", peer.name, "' (worker ", worker.value,
                                   ") at ", peer.address, ": ", why)};
}

void ExpertPeers::Postpone(Peer& peer, absl::Time now) {
  peer.next_dial = now + peer.backoff;
  peer.backoff = std::min(peer.backoff * 2, options_.backoff_most);
}

void ExpertPeers::OnGoodAnswer(WorkerId worker) {
  const auto found = peers_.find(worker);
  if (found != peers_.end()) found->second.backoff = options_.backoff_first;
}

void ExpertPeers::OnVersionRefused(WorkerId worker, PlacementVersion version,
                                   absl::Time now) {
  const auto found = peers_.find(worker);
  if (found != peers_.end())
    found->second.refused[version] = now + options_.refusal_memory;
}

std::optional<WorkerId> ExpertPeers::WorkerOf(
    transport::ConnectionId connection) const {
  const auto found = workers_.find(connection);
  if (found == workers_.end()) return std::nullopt;
  return found->second;
}

std::optional<transport::ConnectionId> ExpertPeers::ConnectionOf(
    WorkerId worker) const {
  const auto found = peers_.find(worker);
  if (found == peers_.end() || found->second.state != State::kUp)
    return std::nullopt;
  return found->second.connection;
}

bool ExpertPeers::Usable(const Peer& peer, PlacementVersion version) const {
  if (peer.state != State::kUp) return false;
  const auto report = peer.versions.find(version);
  return report == peer.versions.end() ||
         report->second == control::ShardState::kReady;
}

bool ExpertPeers::Preferred(const Peer& peer, PlacementVersion version) const {
  return Usable(peer, version) && peer.alive && peer.versions.contains(version);
}

std::vector<WorkerId> ExpertPeers::LiveFor(
    const placement::LayerPlacement& layer, PlacementVersion version,
    absl::Time now) const {
  std::vector<WorkerId> preferred;
  std::vector<WorkerId> usable;
  for (const auto& [worker, peer] : peers_) {
    if (!Usable(peer, version)) continue;
    const auto refused = peer.refused.find(version);
    if (refused != peer.refused.end() && now < refused->second) continue;
    usable.push_back(worker);
    if (Preferred(peer, version)) preferred.push_back(worker);
  }
  return Covers(preferred, layer) ? preferred : usable;
}

absl::Status ExpertPeers::CheckReachable(
    const placement::PlacementMap& map) const {
  std::vector<WorkerId> usable;
  for (const auto& [worker, peer] : peers_) {
    if (Usable(peer, map.version)) usable.push_back(worker);
  }
  for (const placement::LayerPlacement& layer : map.layers) {
    for (size_t e = 0; e < layer.replicas.size(); ++e) {
      const std::vector<placement::Replica>& replicas = layer.replicas[e];
      const bool reachable = std::any_of(replicas.begin(), replicas.end(),
                                         [&](const placement::Replica& r) {
                                           return Contains(usable, r.worker);
                                         });
      if (reachable) continue;
      return absl::UnavailableError(
          absl::StrCat("layer ", layer.layer.value, ", expert ", e,
                       ": no worker of placement version ", map.version.value,
                       " is reachable: ", DescribeOwners(replicas)));
    }
  }
  return absl::OkStatus();
}

std::string ExpertPeers::DescribeOwners(
    const std::vector<placement::Replica>& replicas) const {
  return absl::StrJoin(replicas, "; ",
                       [this](std::string* out, const placement::Replica& r) {
                         absl::StrAppend(out, Describe(r.worker));
                       });
}

std::string ExpertPeers::Describe(WorkerId worker) const {
  const auto found = peers_.find(worker);
  if (found == peers_.end())
    return absl::StrCat("worker ", worker.value, ": not in the cluster");
  const Peer& peer = found->second;
  std::string state;
  switch (peer.state) {
    case State::kUp:
      state = "connected";
      for (const auto& [version, shard] : peer.versions) {
        if (shard != control::ShardState::kReady)
          absl::StrAppend(&state, ", version ", version.value, " ",
                          control::Name(shard));
      }
      break;
    case State::kConnecting:
      state = peer.last_error.empty()
                  ? "connecting"
                  : absl::StrCat("connecting again after ", peer.last_error);
      break;
    case State::kDown:
      state = !peer.last_error.empty() ? peer.last_error
              : peer.alive             ? "not connected yet"
                                       : "has no lease";
      break;
  }
  return absl::StrCat("'", peer.name, "' (worker ", worker.value, ") at ",
                      peer.address, ": ", state);
}

}  // namespace trunkline::trunk
