#include "placement/worker_profile.h"

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
  std::map<WorkerId, uint64_t> bytes;
  for (const MoeLayerShape& shape : layers) {
    const LayerPlacement* layer = map.FindLayer(shape.layer);
    if (layer == nullptr) continue;
    for (const std::vector<Replica>& replicas : layer->replicas) {
      for (const Replica& replica : replicas) {
        bytes[replica.worker] += static_cast<uint64_t>(shape.expert_bytes);
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
