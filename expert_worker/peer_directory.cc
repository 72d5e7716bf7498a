#include "expert_worker/peer_directory.h"

#include <algorithm>
#include <map>

namespace trunkline::expert {
namespace {

bool Ready(const control::WorkerView& worker, PlacementVersion version) {
  return std::any_of(worker.versions.begin(), worker.versions.end(),
                     [version](const control::VersionReport& report) {
                       return report.version == version &&
                              report.state == control::ShardState::kReady;
                     });
}

}  // namespace

void PeerDirectory::Update(const control::ClusterView& view, WorkerId self) {
  const std::lock_guard<std::mutex> lock(mutex_);
  view_ = view;
  self_ = self;
}

uint64_t PeerDirectory::cluster_id() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return view_.cluster_id;
}

std::vector<Peer> PeerDirectory::HoldersOf(ExpertKey key) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::map<WorkerId, Peer> holders;
  for (const control::PlacementView& placement : view_.placements) {
    const placement::LayerPlacement* layer = placement.map.FindLayer(key.layer);
    if (layer == nullptr || key.expert.value >= layer->replicas.size()) {
      continue;
    }
    for (const placement::Replica& replica :
         layer->replicas[key.expert.value]) {
      const control::WorkerView* worker = view_.FindWorker(replica.worker);
      if (worker == nullptr || worker->id == self_ || !worker->alive ||
          worker->data_address.empty() ||
          !Ready(*worker, placement.map.version)) {
        continue;
      }
      holders.emplace(worker->id, Peer{.worker = worker->id,
                                       .name = worker->name,
                                       .data_address = worker->data_address});
    }
  }
  std::vector<Peer> peers;
  for (auto& [id, peer] : holders) peers.push_back(std::move(peer));
  if (!peers.empty()) {
    const size_t first = (key.layer.value + key.expert.value) % peers.size();
    std::rotate(peers.begin(),
                peers.begin() + static_cast<std::ptrdiff_t>(first),
                peers.end());
  }
  return peers;
}

}  // namespace trunkline::expert
