#include "expert_worker/placement_follower.h"

#include <algorithm>
#include <set>
#include <utility>

#include "common/log.h"

namespace trunkline::expert {

namespace {

constexpr absl::Duration kRetryFailedAfter = absl::Seconds(5);

// The states in which a version's shards have to be in memory.
bool NeedsShards(control::PlacementState state) {
  switch (state) {
    case control::PlacementState::kStaging:
    case control::PlacementState::kReady:
    case control::PlacementState::kActive:
    case control::PlacementState::kDraining:
      return true;
    case control::PlacementState::kProposed:
    case control::PlacementState::kRetired:
    case control::PlacementState::kAbandoned:
      return false;
  }
  return false;
}

}  // namespace

PlacementFollower::PlacementFollower(ShardSource* store, VersionServer* engine,
                                     std::function<void()> report_now,
                                     absl::Duration progress_interval,
                                     const Clock* clock)
    : store_(store),
      engine_(engine),
      report_now_(std::move(report_now)),
      progress_interval_(progress_interval),
      clock_(*clock) {}

void PlacementFollower::OnRegistered(const control::Identity& identity) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (identity_.has_value() && identity_->cluster_id != identity.cluster_id) {
    TL_LOG_WARN("joined cluster {} after cluster {}: dropping its placements",
                identity.cluster_id, identity_->cluster_id);
    while (!versions_.empty()) RetireLocked(versions_.begin()->first);
  }
  identity_ = identity;
  engine_->SetIdentity(identity.cluster_id, identity.worker);
  if (last_view_.has_value()) FollowLocked(*last_view_);
}

void PlacementFollower::OnView(const control::ClusterView& view) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    last_view_ = view;
    FollowLocked(view);
  }
  view_changed_.notify_all();
}

void PlacementFollower::FollowLocked(const control::ClusterView& view) {
  if (!identity_.has_value() || view.cluster_id != identity_->cluster_id)
    return;
  drained_ = false;
  alone_ = true;
  for (const control::WorkerView& worker : view.workers) {
    if (worker.id == identity_->worker) {
      drained_ = worker.drained;
    } else if (worker.role == control::Role::kExpert && worker.alive &&
               !worker.draining) {
      alone_ = false;
    }
  }

  std::map<PlacementVersion, std::vector<ExpertKey>> wanted;
  for (const control::PlacementView& placement : view.placements) {
    if (!NeedsShards(placement.state)) continue;
    std::vector<ExpertKey> here = PlacedHere(placement.map);
    if (!here.empty()) wanted[placement.map.version] = std::move(here);
  }
  // Old ones first, so that their memory is free for the new ones.
  std::vector<PlacementVersion> gone;
  for (const auto& [version, unused] : versions_) {
    if (!wanted.contains(version)) gone.push_back(version);
  }
  for (const PlacementVersion version : gone) RetireLocked(version);
  for (auto& [version, experts] : wanted) {
    if (!versions_.try_emplace(version, false).second) continue;
    TL_LOG_INFO("placement version {}: staging {} experts", version.value,
                experts.size());
    store_->Stage(version, std::move(experts),
                  [this](const StageProgress& p) { OnProgress(p); });
  }
}

void PlacementFollower::RetireLocked(PlacementVersion version) {
  TL_LOG_INFO("placement version {}: retired", version.value);
  engine_->Retire(version);
  store_->Retire(version);
  versions_.erase(version);
  retry_at_.erase(version);
}

// A version that is only staged is the coordinator's to give up; one that is
// active or draining has to be served by somebody.
void PlacementFollower::RetryFailedLocked() {
  if (!last_view_.has_value() || retry_at_.empty()) return;
  const absl::Time now = clock_.Now();
  for (const control::PlacementView& placement : last_view_->placements) {
    const PlacementVersion version = placement.map.version;
    const auto found = retry_at_.find(version);
    if (found == retry_at_.end() || now < found->second ||
        (placement.state != control::PlacementState::kActive &&
         placement.state != control::PlacementState::kDraining))
      continue;
    TL_LOG_INFO("placement version {}: trying again", version.value);
    retry_at_.erase(found);
    store_->Stage(version, PlacedHere(placement.map),
                  [this](const StageProgress& p) { OnProgress(p); });
  }
}

std::vector<ExpertKey> PlacementFollower::PlacedHere(
    const placement::PlacementMap& map) const {
  std::vector<ExpertKey> experts;
  for (const placement::LayerPlacement& layer : map.layers) {
    for (uint32_t e = 0; e < layer.replicas.size(); ++e) {
      for (const placement::Replica& replica : layer.replicas[e]) {
        if (replica.worker == identity_->worker)
          experts.push_back({layer.layer, ExpertId(e)});
      }
    }
  }
  return experts;
}

void PlacementFollower::OnProgress(const StageProgress& progress) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    // Retired while it loaded: serving it now would keep its memory for ever.
    if (!versions_.contains(progress.version)) return;
    switch (progress.state) {
      case StageState::kReady:
        TL_LOG_INFO("placement version {}: {} bytes loaded",
                    progress.version.value, progress.bytes_loaded);
        engine_->Serve(
            progress.version, progress.shard,
            [this, version = progress.version] { OnServing(version); });
        return;
      case StageState::kFailed:
        TL_LOG_ERROR("placement version {}: {}", progress.version.value,
                     std::string(progress.status.message()));
        retry_at_[progress.version] = clock_.Now() + kRetryFailedAfter;
        break;
      case StageState::kLoading: {
        const absl::Time now = clock_.Now();
        if (now < last_progress_report_ + progress_interval_) return;
        last_progress_report_ = now;
        break;
      }
    }
  }
  report_now_();
}

void PlacementFollower::OnServing(PlacementVersion version) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = versions_.find(version);
    if (found == versions_.end()) return;
    found->second = true;
  }
  report_now_();
}

std::vector<control::VersionReport> PlacementFollower::Reports() {
  std::vector<control::VersionReport> reports;
  std::lock_guard<std::mutex> lock(mutex_);
  RetryFailedLocked();
  for (const StageProgress& progress : store_->Versions()) {
    const auto found = versions_.find(progress.version);
    if (found == versions_.end()) continue;
    control::VersionReport report;
    report.version = progress.version;
    report.bytes_loaded = static_cast<uint64_t>(progress.bytes_loaded);
    report.bytes_total = static_cast<uint64_t>(progress.bytes_total);
    if (progress.state == StageState::kFailed) {
      report.state = control::ShardState::kFailed;
      report.error = std::string(progress.status.message());
    } else if (found->second) {
      report.state = control::ShardState::kReady;
    }
    reports.push_back(std::move(report));
  }
  return reports;
}

PlacementFollower::Handover PlacementFollower::WaitDrained(
    absl::Duration patience) {
  // The standard library's clocks overflow on an infinite wait.
  const auto limit =
      absl::ToChronoMilliseconds(std::min(patience, absl::Hours(24 * 365)));
  std::unique_lock<std::mutex> lock(mutex_);
  view_changed_.wait_for(lock, limit, [this] { return drained_ || alone_; });
  if (drained_) return Handover::kDrained;
  return alone_ ? Handover::kNobodyLeft : Handover::kTimedOut;
}

}  // namespace trunkline::expert
