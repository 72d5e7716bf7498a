#include "placement/worker_profile.h"

#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace trunkline::placement {
namespace {

absl::Status ValidateClasses(const LayerPlacement& layer, size_t expert,
                             const std::vector<WorkerProfile>& workers) {
  const WorkerProfile* first = nullptr;
  for (const Replica& replica : layer.replicas[expert]) {
    const WorkerProfile* profile = FindProfile(workers, replica.worker);
    if (profile == nullptr) {
      return absl::FailedPreconditionError(absl::StrCat(
          "layer ", layer.layer.value, " expert ", expert, ": worker ",
          replica.worker.value, " is no usable expert worker"));
    }
    if (first == nullptr) first = profile;
    if (profile->numerics_class != first->numerics_class) {
      return absl::FailedPreconditionError(
          absl::StrCat("layer ", layer.layer.value, " expert ", expert,
                       ": worker ", first->worker.value, " computes in class '",
                       first->numerics_class, "' and worker ",
                       profile->worker.value, " in '", profile->numerics_class,
                       "'; copies of one expert must give the same bits"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

const WorkerProfile* FindProfile(const std::vector<WorkerProfile>& workers,
                                 WorkerId worker) {
  for (const WorkerProfile& profile : workers) {
    if (profile.worker == worker) return &profile;
  }
  return nullptr;
}

std::vector<uint64_t> ShardBytes(const PlacementMap& map,
                                 const std::vector<MoeLayerShape>& layers,
                                 const std::vector<WorkerProfile>& workers) {
  return StagingBytes({}, map, layers, workers);
}

std::vector<uint64_t> StagingBytes(const std::vector<const PlacementMap*>& held,
                                   const PlacementMap& next,
                                   const std::vector<MoeLayerShape>& layers,
                                   const std::vector<WorkerProfile>& workers) {
  std::vector<const PlacementMap*> maps = held;
  maps.push_back(&next);
  std::map<WorkerId, uint64_t> bytes;
  for (const MoeLayerShape& shape : layers) {
    for (size_t e = 0; e < static_cast<size_t>(shape.experts); ++e) {
      std::set<WorkerId> owners;
      for (const PlacementMap* map : maps) {
        const LayerPlacement* layer = map->FindLayer(shape.layer);
        if (layer == nullptr || e >= layer->replicas.size()) continue;
        for (const Replica& replica : layer->replicas[e]) {
          owners.insert(replica.worker);
        }
      }
      for (const WorkerId owner : owners) {
        bytes[owner] += static_cast<uint64_t>(shape.expert_bytes);
      }
    }
  }
  std::vector<uint64_t> result;
  result.reserve(workers.size());
  for (const WorkerProfile& profile : workers) {
    result.push_back(bytes[profile.worker]);
  }
  return result;
}

absl::Status ValidateStaging(const std::vector<const PlacementMap*>& held,
                             const PlacementMap& next,
                             const std::vector<MoeLayerShape>& layers,
                             const std::vector<WorkerProfile>& workers) {
  const std::vector<uint64_t> bytes = StagingBytes(held, next, layers, workers);
  for (size_t i = 0; i < workers.size(); ++i) {
    if (workers[i].memory_bytes == 0 || bytes[i] <= workers[i].memory_bytes) {
      continue;
    }
    return absl::FailedPreconditionError(absl::StrCat(
        "worker ", workers[i].worker.value, " would hold ", bytes[i],
        " bytes of experts while the versions change and has room for ",
        workers[i].memory_bytes));
  }
  return absl::OkStatus();
}

absl::Status ValidateAgainstWorkers(const PlacementMap& map,
                                    const std::vector<MoeLayerShape>& layers,
                                    const std::vector<WorkerProfile>& workers) {
  for (const LayerPlacement& layer : map.layers) {
    for (size_t expert = 0; expert < layer.replicas.size(); ++expert) {
      TL_RETURN_IF_ERROR(ValidateClasses(layer, expert, workers));
    }
  }
  const std::vector<uint64_t> bytes = ShardBytes(map, layers, workers);
  for (size_t i = 0; i < workers.size(); ++i) {
    if (workers[i].memory_bytes == 0 || bytes[i] <= workers[i].memory_bytes) {
      continue;
    }
    return absl::FailedPreconditionError(absl::StrCat(
        "worker ", workers[i].worker.value, " would hold ", bytes[i],
        " bytes of experts and has room for ", workers[i].memory_bytes));
  }
  return absl::OkStatus();
}

}  // namespace trunkline::placement
