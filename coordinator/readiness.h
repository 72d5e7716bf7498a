#pragma once

// Is the cluster able to serve every expert, and if not, what is missing: in
// words that name workers, layers and experts. Pure.

#include <string>

#include "coordinator/membership.h"
#include "coordinator/placement_driver.h"
#include "coordinator/placement_store.h"

namespace trunkline::coordinator {

// "worker 'expert-1'".
std::string WorkerLabel(const Membership& membership, WorkerId worker);

// What keeps a worker from serving a version.
std::string WhyNotReady(const Membership& membership, WorkerId worker,
                        PlacementVersion version);

// Why not every expert of every layer has a live owner that has loaded it;
// empty when all have.
std::string WaitingFor(const ClusterRecord& cluster,
                       const Membership& membership,
                       const PlacementDriver& driver);

}  // namespace trunkline::coordinator
