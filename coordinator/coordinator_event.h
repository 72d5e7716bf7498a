#pragma once

// What can happen to a coordinator. Every event but a tick is somebody's
// request and gets exactly one reply.

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "absl/time/time.h"
#include "common/ids.h"
#include "control/cluster_proto.h"
#include "control/coordinator_client.h"
#include "placement/placement_map.h"

namespace trunkline::coordinator {

// Both clocks of the edge: monotonic for leases and delays, wall for history.
struct Moment {
  absl::Time now;
  absl::Time wall;
};

struct RegisterEvent {
  control::Registration registration;
};
struct HeartbeatEvent {
  control::Heartbeat heartbeat;
};
struct LeaveEvent {
  WorkerId worker;
  uint64_t incarnation = 0;
  uint64_t cluster_id = 0;
};

// Starts a change to `map` (its version is given by the coordinator).
struct ApplyEvent {
  placement::PlacementMap map;
  std::string origin;
  // The version that was active when the change was thought out; refused when
  // another is active by now. Invalid: does not matter.
  PlacementVersion expected_active;
};
// Starts a change back to the map of `version`; invalid: of the one that was
// active before.
struct RollbackEvent {
  PlacementVersion version;
};
// Gives up the change that is under way.
struct AbandonEvent {
  PlacementVersion version;
  std::string reason;
};
struct PinEvent {
  bool pinned = false;
  std::string reason;
};
struct DrainEvent {
  std::string worker;  // by name
  bool drain = false;  // false: undrain
};

// Starts or stops counting the loads exactly.
struct RecordEvent {
  bool start = false;
};

using Event = std::variant<RegisterEvent, HeartbeatEvent, LeaveEvent,
                           ApplyEvent, RollbackEvent, AbandonEvent, PinEvent,
                           DrainEvent, RecordEvent>;

}  // namespace trunkline::coordinator
