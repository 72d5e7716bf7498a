#pragma once

// A worker's side of the control plane without its threads and calls: what the
// next request says, what an answer means for the one after it, and which view
// is newer than the one that is followed. Pure. The client
// (coordinator_client.h) drives it with gRPC, the simulator with simulated
// calls.

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "control/cluster_proto.h"
#include "control/cluster_view.h"
#include "control/coordinator_client.h"

namespace trunkline::control {

// Waits that start short, since a coordinator that restarts is back within a
// second, and grow so that a fleet does not hammer one that stays away.
class RetryBackoff {
 public:
  absl::Duration Next();
  void Reset() { next_ = kFirst; }

 private:
  static constexpr absl::Duration kFirst = absl::Milliseconds(100);
  static constexpr absl::Duration kMost = absl::Seconds(1);
  absl::Duration next_ = kFirst;
};

// The newest view that has been delivered.
class FollowedView {
 public:
  // Whether `view` may be delivered: views come in increasing (epoch, revision)
  // of one cluster.
  bool IsOlderThan(const ClusterView& view) const;
  // Once its owner follows it.
  void Set(const ClusterView& view);
  uint64_t epoch() const { return epoch_; }
  uint64_t revision() const { return revision_; }

 private:
  uint64_t cluster_id_ = 0, epoch_ = 0, revision_ = 0;
};

// Registers, then renews its lease for ever. Not thread-safe.
class WorkerSession {
 public:
  // What to do after a call has ended.
  struct Next {
    bool refused = false;  // for good: no further call
    absl::Duration wait;   // until the next call
    // The wait ends early when there is something to report.
    bool wakes_for_report = false;
  };

  // Without an identity the next call is a registration, else a heartbeat.
  bool registered() const { return identity_.has_value(); }
  const std::optional<Identity>& identity() const { return identity_; }
  absl::Duration lease() const { return lease_; }
  absl::Duration heartbeat_timeout() const;

  // What the registration that is due says. A name that another process has is
  // asked for again at once, naming the process that is replaced: whoever
  // registers last has the name, and no request that was late.
  Registration MakeRegistration(Registration registration) const;
  void OnRegistered(const Identity& identity, absl::Duration lease);
  // `followed` was read before `report` was made: the report is then at least
  // as new as the view that the heartbeat claims.
  Heartbeat MakeHeartbeat(const FollowedView& followed, Report report);
  // The call that was due ended with this. OK to a registration comes after
  // OnRegistered.
  Next OnResult(const absl::Status& status);

 private:
  std::optional<Identity> identity_;
  absl::Duration lease_ = absl::Seconds(2);
  std::optional<Report> pending_;  // made, not yet acknowledged
  bool beating_ = false;           // the call that is due is a heartbeat
  uint64_t replaces_ = 0;          // as the coordinator told it last
  RetryBackoff backoff_;
};

}  // namespace trunkline::control
