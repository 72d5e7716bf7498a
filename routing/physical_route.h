#pragma once

// Where an accepted route ran: what the runtime adds to it in a record.

#include <cstdint>

#include "common/ids.h"

namespace trunkline::routing {

// How far a route came. The numbers are those of the route record.
enum class Completion : uint8_t {
  kPlanned = 0,
  kSent = 1,
  kDone = 2,
  kFailed = 3,
  kRetried = 4,
};

struct PhysicalRoute {
  WorkerId origin;                     // the trunk
  WorkerId worker;                     // where it ran
  uint16_t attempt = 0;                // which of the frames to that worker
  uint32_t replica = 0;                // index among the expert's replicas
  uint32_t send_offset = 0;            // row of the frame that went out
  uint32_t receive_offset = 0;         // row of the answer
  uint32_t local_row = 0;              // among the worker's rows of that expert
  PlacementVersion placement_version;  // under which it was planned
  Completion state = Completion::kPlanned;
};

}  // namespace trunkline::routing
