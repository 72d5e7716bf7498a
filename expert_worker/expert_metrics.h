#pragma once

// The numbers an expert worker exposes (docs/metrics.md), as handles into a
// registry that the process owns. Thread-safe.

#include <array>
#include <cstdint>

#include "absl/time/time.h"
#include "dispatch/expert_frame.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"

namespace trunkline::expert {

class ExpertMetrics {
 public:
  explicit ExpertMetrics(prometheus::Registry& registry);

  void OnRefused(dispatch::RefusalCode code);
  void OnAnswered(uint64_t routes, uint64_t answer_bytes,
                  absl::Duration queue_time);

  // Handles; their names stand in expert_metrics.cc.
  prometheus::Counter& frames_received;
  prometheus::Counter& frames_answered;
  prometheus::Counter& frames_dropped;
  prometheus::Counter& routes_executed;
  prometheus::Counter& routes_returned;
  prometheus::Counter& rows_received;
  prometheus::Counter& batches;
  prometheus::Counter& answer_bytes;
  prometheus::Counter& answers_lost;
  // Experts' weights that peers took from here.
  prometheus::Counter& shard_pieces_sent;
  prometheus::Counter& shard_pieces_refused;
  prometheus::Counter& shard_bytes_sent;
  // Where this worker's own came from, as of the last report.
  prometheus::Gauge& experts_loaded_disk;
  prometheus::Gauge& experts_loaded_peer;
  prometheus::Gauge& expert_bytes_loaded_disk;
  prometheus::Gauge& expert_bytes_loaded_peer;
  prometheus::Gauge& peer_pieces_refused;
  prometheus::Gauge& peers_left;
  prometheus::Histogram& queue_seconds;
  prometheus::Histogram& compute_seconds;
  prometheus::Gauge& peers;
  prometheus::Gauge& placement_version;
  prometheus::Gauge& experts_bytes;
  prometheus::Gauge& memory_limit_bytes;
  prometheus::Gauge& read_cost_seconds;
  prometheus::Gauge& row_cost_seconds;

 private:
  static constexpr size_t kCodes =
      static_cast<size_t>(dispatch::RefusalCode::kInternal) + 1;
  std::array<prometheus::Counter*, kCodes> refusals_;
};

}  // namespace trunkline::expert
