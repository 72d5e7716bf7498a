#pragma once

// The placement store in etcd, for several coordinators of which one leads:
// one key per record under a prefix. Every write is one transaction that
// compares who leads, which epoch has begun and which write came before; so
// neither a coordinator that lost the lead nor a request that was delayed on
// its way ever changes what a later one has built on. See
// docs/coordinator_ha.md for the keys.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/etcd_client.h"
#include "coordinator/placement_store.h"

namespace trunkline::coordinator {

// Proof of the lead: the key that the election made, as of that revision.
struct EtcdLead {
  std::string key;
  int64_t create_revision = 0;
};

std::string EtcdLeaderKey(const std::string& prefix);

// Begins a new epoch, durably. new_cluster_id: used when the prefix is empty.
// FAILED_PRECONDITION: the lead is lost, or the keys are another program's or
// another schema version's.
absl::StatusOr<std::unique_ptr<PlacementStore>> OpenEtcdStore(
    std::shared_ptr<EtcdClient> client, const std::string& prefix,
    const EtcdLead& lead, uint64_t new_cluster_id);

}  // namespace trunkline::coordinator
