#include "placement/placement_map.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace trunkline::placement {
namespace {

// Wraps a subject so that all errors of one map read alike.
absl::Status Invalid(PlacementVersion version, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(
      "placement version ",
      version.valid() ? absl::StrCat(version.value) : "none", ": ", what));
}

std::string Subject(LayerIndex layer, size_t expert) {
  return absl::StrCat("layer ", layer.value, " expert ", expert);
}

// Slots of each worker, collected while the experts are checked.
using SlotsByWorker = std::map<WorkerId, std::vector<uint32_t>>;

absl::Status ValidateReplicas(const PlacementMap& map,
                              const LayerPlacement& layer, size_t expert,
                              SlotsByWorker* slots) {
  const std::vector<Replica>& replicas = layer.replicas[expert];
  const std::string subject = Subject(layer.layer, expert);
  if (replicas.empty()) {
    return Invalid(map.version, absl::StrCat(subject, " has no owner"));
  }
  for (size_t r = 0; r < replicas.size(); ++r) {
    const Replica& replica = replicas[r];
    if (!replica.worker.valid()) {
      return Invalid(map.version,
                     absl::StrCat(subject, " replica ", r, " has no worker"));
    }
    if (r > 0 && replicas[r - 1].worker == replica.worker) {
      return Invalid(map.version,
                     absl::StrCat(subject, " has two copies on worker ",
                                  replica.worker.value));
    }
    if (r > 0 && replicas[r - 1].worker > replica.worker) {
      return Invalid(
          map.version,
          absl::StrCat(subject, " lists worker ", replica.worker.value,
                       " after worker ", replicas[r - 1].worker.value,
                       "; replicas ascend by worker"));
    }
    (*slots)[replica.worker].push_back(replica.slot);
  }
  return absl::OkStatus();
}

absl::Status ValidateSlots(const PlacementMap& map, SlotsByWorker slots) {
  for (auto& [worker, used] : slots) {
    std::sort(used.begin(), used.end());
    for (size_t i = 0; i < used.size(); ++i) {
      if (used[i] == i) continue;
      const bool twice = i > 0 && used[i] == used[i - 1];
      return Invalid(
          map.version,
          twice ? absl::StrCat("worker ", worker.value, " uses slot ", used[i],
                               " twice")
                : absl::StrCat("worker ", worker.value, " leaves slot ", i,
                               " unused; slots are dense from 0"));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateLayer(const PlacementMap& map, const LayerPlacement& layer,
                           const MoeLayerShape& shape, SlotsByWorker* slots) {
  if (layer.layer != shape.layer) {
    return Invalid(map.version,
                   absl::StrCat("expected layer ", shape.layer.value,
                                " next, found layer ", layer.layer.value));
  }
  if (static_cast<int64_t>(layer.replicas.size()) != shape.experts) {
    return Invalid(map.version,
                   absl::StrCat("layer ", layer.layer.value, " lists ",
                                layer.replicas.size(),
                                " experts, the model has ", shape.experts));
  }
  for (size_t expert = 0; expert < layer.replicas.size(); ++expert) {
    TL_RETURN_IF_ERROR(ValidateReplicas(map, layer, expert, slots));
  }
  return absl::OkStatus();
}

}  // namespace

const LayerPlacement* PlacementMap::FindLayer(LayerIndex layer) const {
  for (const LayerPlacement& l : layers) {
    if (l.layer == layer) return &l;
  }
  return nullptr;
}

std::vector<WorkerId> PlacementMap::Workers() const {
  std::vector<WorkerId> workers;
  for (const LayerPlacement& layer : layers) {
    for (const std::vector<Replica>& replicas : layer.replicas) {
      for (const Replica& replica : replicas) workers.push_back(replica.worker);
    }
  }
  std::sort(workers.begin(), workers.end());
  workers.erase(std::unique(workers.begin(), workers.end()), workers.end());
  return workers;
}

void AssignSlots(PlacementMap* map) {
  std::map<WorkerId, uint32_t> next;
  for (LayerPlacement& layer : map->layers) {
    for (std::vector<Replica>& replicas : layer.replicas) {
      std::sort(replicas.begin(), replicas.end(),
                [](const Replica& a, const Replica& b) {
                  return a.worker < b.worker;
                });
      for (Replica& replica : replicas) replica.slot = next[replica.worker]++;
    }
  }
}

absl::Status ValidateShapes(const std::vector<MoeLayerShape>& layers) {
  for (size_t i = 0; i < layers.size(); ++i) {
    const MoeLayerShape& shape = layers[i];
    if (!shape.layer.valid()) {
      return absl::InvalidArgumentError(
          absl::StrCat("moe layer ", i, " of the list has no layer index"));
    }
    if (i > 0 && layers[i - 1].layer >= shape.layer) {
      return absl::InvalidArgumentError(
          absl::StrCat("moe layer ", shape.layer.value, " follows layer ",
                       layers[i - 1].layer.value, "; layers ascend"));
    }
    if (shape.experts < 1 || shape.expert_bytes < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("moe layer ", shape.layer.value, ": ", shape.experts,
                       " experts of ", shape.expert_bytes, " bytes"));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidatePlacement(const PlacementMap& map,
                               const std::vector<MoeLayerShape>& layers) {
  TL_RETURN_IF_ERROR(ValidateShapes(layers));
  SlotsByWorker slots;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (i >= map.layers.size()) {
      return Invalid(map.version, absl::StrCat("layer ", layers[i].layer.value,
                                               " has no placement"));
    }
    TL_RETURN_IF_ERROR(ValidateLayer(map, map.layers[i], layers[i], &slots));
  }
  if (map.layers.size() > layers.size()) {
    return Invalid(map.version,
                   absl::StrCat("layer ", map.layers[layers.size()].layer.value,
                                " is no moe layer of the model"));
  }
  return ValidateSlots(map, std::move(slots));
}

absl::StatusOr<PlacementMap> InitialPlacement(
    PlacementVersion version, const std::vector<MoeLayerShape>& layers,
    std::vector<WorkerId> workers, int64_t replicas) {
  TL_RETURN_IF_ERROR(ValidateShapes(layers));
  std::sort(workers.begin(), workers.end());
  const auto twice = std::adjacent_find(workers.begin(), workers.end());
  if (twice != workers.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("initial placement: worker ", twice->value, " twice"));
  }
  const int64_t count = static_cast<int64_t>(workers.size());
  if (count == 0) {
    return absl::InvalidArgumentError("initial placement: no expert worker");
  }
  if (replicas < 1 || replicas > count) {
    return absl::InvalidArgumentError(
        absl::StrCat("initial placement: replicas = ", replicas, " with ",
                     count, " expert workers; 1 to ", count, " are possible"));
  }
  PlacementMap map;
  map.version = version;
  for (const MoeLayerShape& shape : layers) {
    LayerPlacement layer;
    layer.layer = shape.layer;
    layer.replicas.resize(static_cast<size_t>(shape.experts));
    for (int64_t expert = 0; expert < shape.experts; ++expert) {
      const int64_t home = expert * count / shape.experts;
      for (int64_t r = 0; r < replicas; ++r) {
        const size_t owner = static_cast<size_t>((home + r) % count);
        layer.replicas[static_cast<size_t>(expert)].push_back(
            {.worker = workers[owner], .slot = 0});
      }
    }
    map.layers.push_back(std::move(layer));
  }
  AssignSlots(&map);
  return map;
}

}  // namespace trunkline::placement
