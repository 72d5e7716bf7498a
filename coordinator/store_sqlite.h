#pragma once

// The placement store in one SQLite file: write-ahead log, synced at every
// commit, so that a kill or a power cut at any point leaves the last committed
// change whole. All SQLite includes live in store_sqlite.cc.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/placement_store.h"

namespace trunkline::coordinator {

// Opens or creates `path` (":memory:" lasts as long as the store) and begins a
// new epoch, durably. new_cluster_id: used when the file is new. The file is
// locked while it is open: FAILED_PRECONDITION when another coordinator has it.
// DATA_LOSS or FAILED_PRECONDITION naming the file when it is no state file of
// ours or of another schema version.
absl::StatusOr<std::unique_ptr<PlacementStore>> OpenSqliteStore(
    const std::string& path, uint64_t new_cluster_id);

}  // namespace trunkline::coordinator
