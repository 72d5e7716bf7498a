#include "coordinator/coordinator_metrics.h"

#include "common/metric_registry.h"

namespace trunkline::coordinator {
namespace {

constexpr char kWorkers[] = "trunkline_coordinator_workers";
constexpr char kWorkersHelp[] = "Known workers by role and state.";
constexpr char kRegistrations[] = "trunkline_coordinator_registrations_total";
constexpr char kRegistrationsHelp[] = "Registrations by result.";
constexpr char kChanges[] = "trunkline_coordinator_placement_changes_total";
constexpr char kChangesHelp[] = "Placement versions by what became of them.";

}  // namespace

CoordinatorMetrics::CoordinatorMetrics(prometheus::Registry& registry)
    : registry_(registry),
      leases_lost_(AddCounter(registry,
                              "trunkline_coordinator_leases_lost_total",
                              "Workers that fell silent.")),
      registrations_(AddCounter(registry, kRegistrations, kRegistrationsHelp,
                                {{"result", "accepted"}})),
      registrations_refused_(AddCounter(registry, kRegistrations,
                                        kRegistrationsHelp,
                                        {{"result", "refused"}})),
      activated_(AddCounter(registry, kChanges, kChangesHelp,
                            {{"result", "activated"}})),
      abandoned_(AddCounter(registry, kChanges, kChangesHelp,
                            {{"result", "abandoned"}})),
      retired_(AddCounter(registry, kChanges, kChangesHelp,
                          {{"result", "retired"}})),
      canary_mismatches_(AddCounter(
          registry, "trunkline_coordinator_canary_mismatches_total",
          "Placement versions under which a trunk's canary prompt gave other "
          "bits than before.")),
      canary_rollbacks_(
          AddCounter(registry, "trunkline_coordinator_canary_rollbacks_total",
                     "Rollbacks begun because of that.")),
      commits_(AddCounter(registry, "trunkline_coordinator_commits_total",
                          "Changes written to the placement store.")),
      commit_failures_(AddCounter(registry,
                                  "trunkline_coordinator_commit_failures_total",
                                  "Changes that the placement store refused.")),
      commit_seconds_(AddHistogram(
          registry, "trunkline_coordinator_commit_seconds",
          "Time of a step that writes to the placement store.",
          {0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2})),
      trunks_alive_(AddGauge(registry, kWorkers, kWorkersHelp,
                             {{"role", "trunk"}, {"state", "alive"}})),
      trunks_lost_(AddGauge(registry, kWorkers, kWorkersHelp,
                            {{"role", "trunk"}, {"state", "lost"}})),
      experts_alive_(AddGauge(registry, kWorkers, kWorkersHelp,
                              {{"role", "expert"}, {"state", "alive"}})),
      experts_lost_(AddGauge(registry, kWorkers, kWorkersHelp,
                             {{"role", "expert"}, {"state", "lost"}})),
      draining_(AddGauge(registry, "trunkline_coordinator_workers_draining",
                         "Workers that are being drained or are drained.")),
      placement_version_(AddGauge(registry, "trunkline_placement_version",
                                  "The active placement version; 0: none.")),
      placements_live_(AddGauge(registry,
                                "trunkline_coordinator_placements_live",
                                "Placement versions that are not retired.")),
      ready_(AddGauge(registry, "trunkline_coordinator_ready",
                      "1 when every expert has a live owner.")),
      epoch_(AddGauge(registry, "trunkline_coordinator_epoch",
                      "Grows with each start of the coordinator.")),
      view_revision_(AddGauge(registry, "trunkline_coordinator_view_revision",
                              "Revision of the published view.")),
      watchers_(AddGauge(registry, "trunkline_coordinator_watchers",
                         "Open streams that follow the view.")),
      leader_(AddGauge(registry, "trunkline_coordinator_leader",
                       "1 while this coordinator leads.")),
      terms_(AddCounter(registry, "trunkline_coordinator_terms_total",
                        "How often this coordinator began to lead.")) {}

void CoordinatorMetrics::OnRole(bool leads) {
  leader_.Set(leads ? 1 : 0);
  if (leads) terms_.Increment();
  // What a follower last saw as leader is no news of the cluster.
  if (!leads) ready_.Set(0);
}

void CoordinatorMetrics::OnRequest(const char* method,
                                   const absl::Status& status) {
  AddCounter(
      registry_, "trunkline_coordinator_requests_total",
      "Control plane requests by method and status code.",
      {{"method", method}, {"code", absl::StatusCodeToString(status.code())}})
      .Increment();
}

void CoordinatorMetrics::OnStep(const Tally& tally, bool committed,
                                bool commit_failed, absl::Duration took) {
  // Most steps are heartbeats that change nothing.
  if (committed) {
    commits_.Increment();
    commit_seconds_.Observe(absl::ToDoubleSeconds(took));
  }
  if (commit_failed) commit_failures_.Increment();
  leases_lost_.Increment(tally.leases_lost);
  registrations_.Increment(tally.registered);
  registrations_refused_.Increment(tally.registrations_refused);
  activated_.Increment(tally.activated);
  abandoned_.Increment(tally.abandoned);
  retired_.Increment(tally.retired);
  canary_mismatches_.Increment(tally.canary_mismatches);
  canary_rollbacks_.Increment(tally.canary_rollbacks);
}

void CoordinatorMetrics::OnView(const control::ClusterView& view) {
  int alive[2] = {0, 0}, lost[2] = {0, 0}, draining = 0;
  for (const control::WorkerView& worker : view.workers) {
    const int role = worker.role == control::Role::kExpert ? 1 : 0;
    ++(worker.alive ? alive : lost)[role];
    if (worker.draining) ++draining;
  }
  trunks_alive_.Set(alive[0]);
  experts_alive_.Set(alive[1]);
  trunks_lost_.Set(lost[0]);
  experts_lost_.Set(lost[1]);
  draining_.Set(draining);
  placement_version_.Set(
      view.active.valid() ? static_cast<double>(view.active.value) : 0);
  placements_live_.Set(static_cast<double>(view.placements.size()));
  ready_.Set(view.waiting_for.empty() ? 1 : 0);
  epoch_.Set(static_cast<double>(view.epoch));
  view_revision_.Set(static_cast<double>(view.revision));
}

}  // namespace trunkline::coordinator
