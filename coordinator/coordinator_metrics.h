#pragma once

// The numbers a coordinator exposes (docs/metrics.md). Thread-safe.

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "control/cluster_view.h"
#include "coordinator/coordinator_action.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"

namespace trunkline::coordinator {

class CoordinatorMetrics {
 public:
  explicit CoordinatorMetrics(prometheus::Registry& registry);

  void OnRequest(const char* method, const absl::Status& status);
  // took: the whole step with its commit; committed: something was stored.
  void OnStep(const Tally& tally, bool committed, bool commit_failed,
              absl::Duration took);
  void OnView(const control::ClusterView& view);
  // Called when this coordinator begins or ceases to lead.
  void OnRole(bool leads);
  void OnWatchers(size_t count) { watchers_.Set(static_cast<double>(count)); }

 private:
  prometheus::Registry& registry_;
  prometheus::Counter& leases_lost_;
  prometheus::Counter& registrations_;
  prometheus::Counter& registrations_refused_;
  prometheus::Counter& activated_;
  prometheus::Counter& abandoned_;
  prometheus::Counter& retired_;
  prometheus::Counter& canary_mismatches_;
  prometheus::Counter& canary_rollbacks_;
  prometheus::Counter& commits_;
  prometheus::Counter& commit_failures_;
  prometheus::Histogram& commit_seconds_;
  prometheus::Gauge& trunks_alive_;
  prometheus::Gauge& trunks_lost_;
  prometheus::Gauge& experts_alive_;
  prometheus::Gauge& experts_lost_;
  prometheus::Gauge& draining_;
  prometheus::Gauge& placement_version_;
  prometheus::Gauge& placements_live_;
  prometheus::Gauge& ready_;
  prometheus::Gauge& epoch_;
  prometheus::Gauge& view_revision_;
  prometheus::Gauge& watchers_;
  prometheus::Gauge& leader_;
  prometheus::Counter& terms_;
};

}  // namespace trunkline::coordinator
