#include "placement/repair.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace trunkline::placement {
namespace {

class Repair {
 public:
  Repair(const PlacementMap& map, const std::vector<MoeLayerShape>& layers,
         const std::vector<WorkerProfile>& usable,
         const std::vector<const PlacementMap*>& held)
      : old_(map), layers_(layers), usable_(usable), held_(held) {}

  absl::StatusOr<RepairResult> Run() {
    KeepUsable();
    // Lost experts first: a redundant copy must not take their room.
    TL_RETURN_IF_ERROR(Fill(/*lost_only=*/true));
    TL_RETURN_IF_ERROR(Fill(/*lost_only=*/false));
    AssignSlots(&result_.map);
    result_.map.version = PlacementVersion();
    return std::move(result_);
  }

 private:
  void KeepUsable() {
    result_.map = old_;
    for (LayerPlacement& layer : result_.map.layers) {
      for (std::vector<Replica>& replicas : layer.replicas) {
        const size_t gone = std::erase_if(replicas, [&](const Replica& r) {
          return FindProfile(usable_, r.worker) == nullptr;
        });
        if (gone > 0) result_.changed = true;
      }
    }
    bytes_ = StagingBytes(held_, result_.map, layers_, usable_);
  }

  absl::Status Fill(bool lost_only) {
    for (size_t l = 0; l < layers_.size(); ++l) {
      layer_copies_.assign(usable_.size(), 0);
      for (const std::vector<Replica>& replicas :
           result_.map.layers[l].replicas) {
        for (const Replica& replica : replicas) {
          ++layer_copies_[IndexOf(replica.worker)];
        }
      }
      for (size_t e = 0; e < old_.layers[l].replicas.size(); ++e) {
        TL_RETURN_IF_ERROR(FillExpert(l, e, lost_only));
      }
    }
    return absl::OkStatus();
  }

  absl::Status FillExpert(size_t l, size_t e, bool lost_only) {
    std::vector<Replica>& replicas = result_.map.layers[l].replicas[e];
    const size_t before = old_.layers[l].replicas[e].size();
    const size_t wanted =
        lost_only ? size_t{1} : std::min(before, usable_.size());
    while (replicas.size() < wanted) {
      const size_t choice = Choose(l, e, replicas);
      if (choice == usable_.size()) {
        if (!replicas.empty()) {
          result_.copies_missing +=
              static_cast<int64_t>(wanted - replicas.size());
          return absl::OkStatus();
        }
        return absl::ResourceExhaustedError(absl::StrCat(
            "layer ", layers_[l].layer.value, " expert ", e, ": none of ",
            usable_.size(), " usable expert workers has room for its ",
            layers_[l].expert_bytes, " bytes"));
      }
      bytes_[choice] += CostOf(l, e, usable_[choice].worker);
      ++layer_copies_[choice];
      replicas.push_back({.worker = usable_[choice].worker, .slot = 0});
      result_.changed = true;
    }
    return absl::OkStatus();
  }

  // Index into usable_; its size when nobody qualifies.
  size_t Choose(size_t l, size_t e, const std::vector<Replica>& holders) const {
    std::set<std::string> domains;
    std::set<WorkerId> owners;
    std::string numerics_class;
    for (const Replica& replica : holders) {
      const WorkerProfile& profile = usable_[IndexOf(replica.worker)];
      owners.insert(replica.worker);
      domains.insert(profile.failure_domain);
      numerics_class = profile.numerics_class;
    }
    size_t best = usable_.size();
    std::tuple<bool, double, uint64_t, uint32_t> best_cost;
    for (size_t i = 0; i < usable_.size(); ++i) {
      const WorkerProfile& profile = usable_[i];
      const bool other_class =
          !holders.empty() && profile.numerics_class != numerics_class;
      const uint64_t bytes = CostOf(l, e, profile.worker);
      const bool full =
          profile.memory_bytes != 0 && bytes_[i] + bytes > profile.memory_bytes;
      if (owners.count(profile.worker) != 0 || other_class || full) continue;
      const std::tuple<bool, double, uint64_t, uint32_t> cost(
          domains.count(profile.failure_domain) != 0,
          static_cast<double>(layer_copies_[i] + 1) / profile.speed, bytes_[i],
          profile.worker.value);
      if (best == usable_.size() || cost < best_cost) {
        best = i;
        best_cost = cost;
      }
    }
    return best;
  }

  // Nothing when the worker still keeps the expert for another version.
  uint64_t CostOf(size_t l, size_t e, WorkerId worker) const {
    for (const PlacementMap* map : held_) {
      const LayerPlacement* layer = map->FindLayer(layers_[l].layer);
      if (layer == nullptr || e >= layer->replicas.size()) continue;
      for (const Replica& replica : layer->replicas[e]) {
        if (replica.worker == worker) return 0;
      }
    }
    return static_cast<uint64_t>(layers_[l].expert_bytes);
  }

  size_t IndexOf(WorkerId worker) const {
    return static_cast<size_t>(FindProfile(usable_, worker) - usable_.data());
  }

  const PlacementMap& old_;
  const std::vector<MoeLayerShape>& layers_;
  const std::vector<WorkerProfile>& usable_;
  const std::vector<const PlacementMap*>& held_;
  RepairResult result_;
  std::vector<uint64_t> bytes_;        // [usable_]
  std::vector<int64_t> layer_copies_;  // [usable_], of the layer being filled
};

}  // namespace

absl::StatusOr<RepairResult> RepairPlacement(
    const PlacementMap& map, const std::vector<MoeLayerShape>& layers,
    const std::vector<WorkerProfile>& usable,
    const std::vector<const PlacementMap*>& held) {
  TL_RETURN_IF_ERROR(ValidatePlacement(map, layers));
  return Repair(map, layers, usable, held).Run();
}

}  // namespace trunkline::placement
