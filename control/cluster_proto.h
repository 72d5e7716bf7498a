#pragma once

// The control plane's messages as plain values and back. Everything a peer sent
// is checked here: INVALID_ARGUMENT names the field. Used by both edges (client
// here, server in coordinator/); no core sees a generated type.

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "control/cluster_view.h"
#include "control/coordinator_client.h"
#include "proto/control.pb.h"

namespace trunkline::control {

// The wire package; v1:: would shadow the generation API's package elsewhere.
namespace wire = ::trunkline::control::v1;

struct Heartbeat {
  WorkerId worker;
  uint64_t incarnation = 0;
  uint64_t cluster_id = 0;
  Report report;
  uint64_t view_epoch = 0, view_revision = 0;  // what the worker follows
};

// Printable, without spaces, 1 to 253 characters. INVALID_ARGUMENT says
// `field`.
absl::Status ValidateName(const std::string& name, const std::string& field);

// What a coordinator asks of a registration, whoever made it.
absl::Status ValidateRegistration(const Registration& registration);

wire::RegisterRequest ToProto(const Registration& registration);
absl::StatusOr<Registration> FromProto(const wire::RegisterRequest& request);

wire::HeartbeatRequest ToProto(const Heartbeat& heartbeat);
absl::StatusOr<Heartbeat> FromProto(const wire::HeartbeatRequest& request);

wire::Placement ToProto(const PlacementView& placement);
absl::StatusOr<PlacementView> FromProto(const wire::Placement& placement);

wire::ClusterView ToProto(const ClusterView& view);
absl::StatusOr<ClusterView> FromProto(const wire::ClusterView& view);

}  // namespace trunkline::control
