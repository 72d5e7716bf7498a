#include "control/worker_session.h"

#include <algorithm>
#include <utility>

#include "control/status_to_grpc.h"

namespace trunkline::control {
namespace {

// A lease that is no number of seconds would make us spin or sleep forever.
constexpr absl::Duration kLeaseLeast = absl::Milliseconds(50);
constexpr absl::Duration kLeaseMost = absl::Hours(1);

// Refused for good: wrong model, wrong numerics class, or another process has
// taken the name.
bool IsRefusal(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) || absl::IsInvalidArgument(status);
}

// Loads are counts since the last report: those of a heartbeat that did not
// arrive go out with the next one. (One that arrived without its answer counts
// twice; loads steer balancing and may be off, never text.)
void AddLoads(const Report& older, Report* newer) {
  for (const ExpertLoadReport& old : older.loads) {
    const auto same = std::find_if(
        newer->loads.begin(), newer->loads.end(),
        [&](const ExpertLoadReport& load) { return load.layer == old.layer; });
    if (same == newer->loads.end()) {
      newer->loads.push_back(old);
      continue;
    }
    if (same->selected.size() != old.selected.size()) continue;
    for (size_t e = 0; e < old.selected.size(); ++e) {
      same->selected[e] += old.selected[e];
      same->executed[e] += old.executed[e];
    }
  }
}

}  // namespace

absl::Duration RetryBackoff::Next() {
  const absl::Duration now = next_;
  next_ = std::min(next_ * 2, kMost);
  return now;
}

bool FollowedView::IsOlderThan(const ClusterView& view) const {
  return view.cluster_id != cluster_id_ ||
         std::pair(view.epoch, view.revision) > std::pair(epoch_, revision_);
}

void FollowedView::Set(const ClusterView& view) {
  cluster_id_ = view.cluster_id;
  epoch_ = view.epoch;
  revision_ = view.revision;
}

absl::Duration WorkerSession::heartbeat_timeout() const {
  return std::max(lease_ / 2, absl::Milliseconds(200));
}

Registration WorkerSession::MakeRegistration(Registration registration) const {
  registration.replaces = replaces_;
  return registration;
}

void WorkerSession::OnRegistered(const Identity& identity,
                                 absl::Duration lease) {
  identity_ = identity;
  lease_ = std::clamp(lease, kLeaseLeast, kLeaseMost);
}

Heartbeat WorkerSession::MakeHeartbeat(const FollowedView& followed,
                                       Report report) {
  if (pending_) AddLoads(*pending_, &report);
  pending_ = report;
  beating_ = true;
  return {.worker = identity_->worker,
          .incarnation = identity_->incarnation,
          .cluster_id = identity_->cluster_id,
          .report = std::move(report),
          .view_epoch = followed.epoch(),
          .view_revision = followed.revision()};
}

WorkerSession::Next WorkerSession::OnResult(const absl::Status& status) {
  const bool heartbeat = std::exchange(beating_, false);
  Next next;
  if (IsRefusal(status)) {
    next.refused = true;
    return next;
  }
  if (status.ok()) {
    backoff_.Reset();
    if (heartbeat) pending_.reset();
    next.wait = lease_ / 3;
    next.wakes_for_report = true;
    return next;
  }
  if (absl::IsNotFound(status)) {
    // The lease is gone; the next call registers again, at once.
    identity_.reset();
    return next;
  }
  // Each answer of this kind names a later process than the one before.
  if (const uint64_t holder = NameHeldBy(status); holder > replaces_) {
    replaces_ = holder;
    return next;
  }
  // A heartbeat that failed is tried again within the lease.
  next.wait = backoff_.Next();
  if (registered()) next.wait = std::min(next.wait, lease_ / 3);
  return next;
}

}  // namespace trunkline::control
