#pragma once

// What the core knows as the admin API's messages. Reads the core, changes
// nothing.

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/coordinator.h"
#include "coordinator/rebalance.h"
#include "proto/placement_admin.pb.h"

namespace trunkline::coordinator {

namespace admin = ::trunkline::admin::v1;

admin::ShowResponse DescribePlacements(const Coordinator& core, absl::Time now);
admin::ListWorkersResponse DescribeWorkers(const Coordinator& core,
                                           absl::Time now);
admin::HistoryResponse DescribeHistory(const Coordinator& core, uint32_t limit);
// Without a version.
admin::PlanResponse DescribePlan(const RebalanceSnapshot& snapshot,
                                 const placement::BalancePlan& plan);
void DescribeRecording(const LoadLedger::Recording& recording, bool with_loads,
                       admin::RecordLoadsResponse* response);
// The document of a version; invalid: of the active one.
absl::StatusOr<std::string> ExportDocument(const Coordinator& core,
                                           PlacementVersion version);

// INVALID_ARGUMENT names the field.
absl::StatusOr<RebalanceOptions> OptionsFrom(const admin::PlanRequest& request);

}  // namespace trunkline::coordinator
