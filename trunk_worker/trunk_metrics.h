#pragma once

// The numbers a trunk worker exposes (docs/metrics.md), as handles into a
// registry that the process owns. Thread-safe.

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"
#include "routing/route_validator.h"
#include "trunk_worker/engine.h"
#include "trunk_worker/generation_request.h"

namespace trunkline::trunk {

class TrunkMetrics {
 public:
  explicit TrunkMetrics(prometheus::Registry& registry);

  // Per-layer counters for these layers. Once, before the first step.
  void AddLayers(prometheus::Registry& registry,
                 std::span<const LayerIndex> layers);
  // The values of the per-layer counters, ascending by layer.
  std::vector<LayerRouteCounts> LayerTotals() const;

  void OnStep(const StepStats& step);
  void OnRecompute(uint64_t sequences);
  void OnFirstToken(absl::Duration since_arrival);
  // Every request once, also one that was refused.
  void OnRequestEnd(const absl::Status& status, const Usage& usage);
  void OnState(const EngineStats& stats);
  void OnPlacement(PlacementVersion active);
  void OnLayerValidated();
  // Requests held because experts are out of reach.
  void OnHold(size_t requests);
  void OnCanary(bool done);

 private:
  std::array<prometheus::Counter*, 17> requests_;  // by status code
  prometheus::Counter& prompt_tokens_;
  prometheus::Counter& output_tokens_;
  prometheus::Counter& steps_;
  prometheus::Counter& steps_failed_;
  prometheus::Counter& recomputed_;
  prometheus::Counter& rows_;
  prometheus::Counter& decode_rows_;
  prometheus::Counter& routes_selected_;
  prometheus::Counter& routes_accepted_;
  prometheus::Counter& routes_dropped_;
  prometheus::Counter& routes_combined_;
  struct LayerCounters {
    prometheus::Counter* selected;
    prometheus::Counter* executed;
    prometheus::Counter* dropped;
  };
  std::map<LayerIndex, LayerCounters> layers_;  // constant after AddLayers
  std::map<routing::RouteContract, prometheus::Counter*> broken_contracts_;
  prometheus::Counter& layers_validated_;
  prometheus::Histogram& first_token_seconds_;
  prometheus::Histogram& step_seconds_;
  prometheus::Gauge& placement_version_;
  prometheus::Gauge& running_;
  prometheus::Gauge& waiting_;
  prometheus::Gauge& state_bytes_;
  prometheus::Gauge& state_limit_bytes_;
  prometheus::Gauge& ready_;
  prometheus::Gauge& held_;
  prometheus::Counter& held_total_;
  prometheus::Counter& canary_done_;
  prometheus::Counter& canary_failed_;
};

}  // namespace trunkline::trunk
