#pragma once

// What a coordinator wants done after a step. The edge commits `change` first;
// only then may anybody see the reply or the new view, so that nothing was
// promised that a crash can undo.

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "control/coordinator_client.h"
#include "coordinator/placement_store.h"

namespace trunkline::coordinator {

struct RegisterReply {
  control::Identity identity;
  absl::Duration lease;
};
struct HeartbeatReply {
  uint64_t epoch = 0;
};
struct ChangeReply {
  PlacementVersion version;  // the version that the request started
};
struct EmptyReply {};

using ReplyBody =
    std::variant<EmptyReply, RegisterReply, HeartbeatReply, ChangeReply>;

struct Reply {
  absl::Status status;
  ReplyBody body;
};

// What happened, for metrics.
struct Tally {
  int leases_lost = 0;
  int registered = 0, registrations_refused = 0;
  int activated = 0, abandoned = 0, retired = 0;
  int canary_mismatches = 0, canary_rollbacks = 0;
};

struct Actions {
  std::optional<Reply> reply;  // set by every Step, never by Tick
  StoreChange change;
  bool view_changed = false;
  // It is time to plan a rebalance (rebalance.h) and to apply it if it is worth
  // it. Planning is slow, so the edge does it beside the loop.
  bool plan_rebalance = false;
  std::vector<std::string> notes;  // for the log: what happened, in sentences
  Tally tally;
};

}  // namespace trunkline::coordinator
