#pragma once

// What the commands print about workers and the load of their experts. Pure.

#include <string>

#include "proto/placement_admin.pb.h"

namespace trunkline::cli {

namespace admin = ::trunkline::admin::v1;

// "serving", "draining", "safe to stop", "lost".
std::string WorkerState(const control::v1::WorkerView& worker);
std::string WorkersText(const admin::ListWorkersResponse& workers);
std::string LoadsText(const admin::RecordLoadsResponse& loads);

}  // namespace trunkline::cli
