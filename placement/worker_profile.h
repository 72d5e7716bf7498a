#pragma once

// What a placement has to know of each expert worker, and the check of a map
// against it. Pure.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/ids.h"
#include "placement/placement_map.h"

namespace trunkline::placement {

struct WorkerProfile {
  WorkerId worker;
  uint64_t memory_bytes = 0;  // room for shards; 0: not limited
  double speed = 1.0;  // relative: twice the speed does a row in half the time
  std::string failure_domain;  // what dies together: a host, a rack
  std::string numerics_class;
};

const WorkerProfile* FindProfile(const std::vector<WorkerProfile>& workers,
                                 WorkerId worker);

// Bytes of shards that each worker of the map holds, in the order of `workers`;
// copies on a worker that is not in the list are left out.
std::vector<uint64_t> ShardBytes(const PlacementMap& map,
                                 const std::vector<MoeLayerShape>& layers,
                                 const std::vector<WorkerProfile>& workers);

// Bytes that each worker holds while all of `held` and `next` are loaded (an
// expert that several of them give it is held once), in the order of `workers`.
std::vector<uint64_t> StagingBytes(const std::vector<const PlacementMap*>& held,
                                   const PlacementMap& next,
                                   const std::vector<MoeLayerShape>& layers,
                                   const std::vector<WorkerProfile>& workers);

// Room for `next` beside what the workers still hold. FAILED_PRECONDITION names
// worker and bytes.
absl::Status ValidateStaging(const std::vector<const PlacementMap*>& held,
                             const PlacementMap& next,
                             const std::vector<MoeLayerShape>& layers,
                             const std::vector<WorkerProfile>& workers);

// Every worker of a valid map is in the list and has room for its shards, and
// the copies of one expert share a numerics class, since copies of different
// classes give different bits. FAILED_PRECONDITION names worker, bytes, layer
// and expert.
absl::Status ValidateAgainstWorkers(const PlacementMap& map,
                                    const std::vector<MoeLayerShape>& layers,
                                    const std::vector<WorkerProfile>& workers);

}  // namespace trunkline::placement
