#pragma once

// From the coordinator's view to what this worker loads and serves: stages each
// version that places experts here, tells the engine when it is loaded, retires
// what the view no longer holds, and reports how far each version is.
//
// A version is reported READY only once the engine serves it, so a trunk that
// acts on the report is never refused. A coordinator that is silent changes
// nothing: what is served stays served.
//
// Thread safety: all methods from any thread.

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "common/clock.h"
#include "control/cluster_view.h"
#include "control/coordinator_client.h"
#include "expert_worker/expert_engine.h"
#include "expert_worker/expert_store.h"

namespace trunkline::expert {

class PlacementFollower {
 public:
  // store and engine outlive the follower's last call. report_now is called
  // when a report would say something new: at once for a new state, at most
  // once in `progress_interval` for bytes.
  PlacementFollower(ShardSource* store, VersionServer* engine,
                    std::function<void()> report_now,
                    absl::Duration progress_interval = absl::Milliseconds(500),
                    const Clock* clock = &Clock::Monotonic());

  // First registration and every later one. Another cluster than before: all
  // versions go, their numbers mean nothing there.
  void OnRegistered(const control::Identity& identity);
  void OnView(const control::ClusterView& view);

  // Asked for with every heartbeat, ascending. Also the time to try again what
  // could not be loaded and is needed all the same: a disk or a neighbour in
  // memory that was in the way for a moment must not keep an expert away until
  // somebody restarts the process.
  std::vector<control::VersionReport> Reports();
  // Waits until the coordinator says that no version needs this worker any
  // more, or that no expert worker is left that could take over: none is alive
  // and itself not on its way out, as when a whole cluster stops.
  enum class Handover : uint8_t { kDrained, kNobodyLeft, kTimedOut };
  Handover WaitDrained(absl::Duration patience);

 private:
  void FollowLocked(const control::ClusterView& view);
  void OnProgress(const StageProgress& progress);
  void OnServing(PlacementVersion version);
  std::vector<ExpertKey> PlacedHere(const placement::PlacementMap& map) const;
  void RetireLocked(PlacementVersion version);
  void RetryFailedLocked();

  ShardSource* const store_;
  VersionServer* const engine_;
  const std::function<void()> report_now_;
  const absl::Duration progress_interval_;
  const Clock& clock_;

  mutable std::mutex mutex_;
  std::condition_variable view_changed_;
  // By mutex_: all below.
  std::optional<control::Identity> identity_;
  // A view can overtake the registration that it belongs to.
  std::optional<control::ClusterView> last_view_;
  std::map<PlacementVersion, bool> versions_;  // wanted -> served
  absl::Time last_progress_report_ = absl::InfinitePast();
  std::map<PlacementVersion, absl::Time> retry_at_;  // of failed versions
  bool drained_ = false;
  bool alone_ = true;
};

}  // namespace trunkline::expert
