#include "trunk_worker/trunk_metrics.h"

#include <string>
#include <vector>

#include "common/metric_registry.h"

namespace trunkline::trunk {
namespace {

const std::vector<double> kSecondsBuckets = {1e-3, 3e-3, 1e-2, 3e-2, 0.1,
                                             0.3,  1,    3,    10,   30};

}  // namespace

TrunkMetrics::TrunkMetrics(prometheus::Registry& registry)
    : prompt_tokens_(AddCounter(registry, "trunkline_prompt_tokens_total",
                                "Prompt tokens of requests that ended")),
      output_tokens_(AddCounter(registry, "trunkline_output_tokens_total",
                                "Tokens made for requests that ended")),
      steps_(AddCounter(registry, "trunkline_steps_total", "Steps run")),
      steps_failed_(AddCounter(registry, "trunkline_steps_failed_total",
                               "Steps that ended with an error")),
      recomputed_(AddCounter(registry, "trunkline_sequences_recomputed_total",
                             "Sequences that were prefilled again after a "
                             "step had failed")),
      rows_(AddCounter(registry, "trunkline_step_rows_total",
                       "Rows of all steps, prefill and decode")),
      decode_rows_(AddCounter(registry, "trunkline_step_decode_rows_total",
                              "Decode rows of all steps")),
      routes_selected_(AddCounter(registry, "trunkline_routes_selected_total",
                                  "Routes that the router chose")),
      routes_accepted_(AddCounter(registry, "trunkline_routes_accepted_total",
                                  "Routes that admission let through")),
      routes_dropped_(AddCounter(registry, "trunkline_routes_dropped_total",
                                 "Routes that fixed capacity dropped")),
      routes_combined_(
          AddCounter(registry, "trunkline_routes_combined_total",
                     "Routes whose expert's output was added to its row")),
      layers_validated_(
          AddCounter(registry, "trunkline_route_layers_validated_total",
                     "Layers that --validate-routes held to every contract")),
      first_token_seconds_(AddHistogram(registry,
                                        "trunkline_time_to_first_token_seconds",
                                        "From a request's arrival to its first "
                                        "token",
                                        kSecondsBuckets)),
      step_seconds_(AddHistogram(registry, "trunkline_step_seconds",
                                 "Duration of a step", kSecondsBuckets)),
      placement_version_(AddGauge(registry, "trunkline_placement_version",
                                  "Active placement version, 0: none")),
      running_(AddGauge(registry, "trunkline_sequences_running",
                        "Requests that hold a sequence slot")),
      waiting_(AddGauge(registry, "trunkline_requests_waiting",
                        "Requests that wait for memory")),
      state_bytes_(AddGauge(registry, "trunkline_state_bytes",
                            "Sequence state in use or reserved")),
      state_limit_bytes_(AddGauge(registry, "trunkline_state_limit_bytes",
                                  "Memory for sequence state")),
      ready_(AddGauge(registry, "trunkline_ready",
                      "1 when steps can run, else 0")),
      held_(AddGauge(registry, "trunkline_requests_held",
                     "Requests that wait because experts are out of reach")),
      held_total_(AddCounter(registry, "trunkline_requests_held_total",
                             "Requests that had to wait because experts were "
                             "out of reach, once for each wait")),
      canary_done_(AddCounter(registry, "trunkline_canary_runs_total",
                              "Canary prompts, by whether they gave a result",
                              {{"result", "done"}})),
      canary_failed_(AddCounter(registry, "trunkline_canary_runs_total",
                                "Canary prompts, by whether they gave a result",
                                {{"result", "failed"}})) {
  for (size_t code = 0; code < requests_.size(); ++code) {
    requests_[code] = &AddCounter(
        registry, "trunkline_requests_total",
        "Generation requests that ended, by status code",
        {{"code",
          absl::StatusCodeToString(static_cast<absl::StatusCode>(code))}});
  }
  for (routing::RouteContract contract : routing::AllRouteContracts()) {
    broken_contracts_[contract] =
        &AddCounter(registry, "trunkline_route_contracts_broken_total",
                    "Steps that ended because a routing contract was broken",
                    {{"contract", std::string(routing::Name(contract))}});
  }
}

void TrunkMetrics::AddLayers(prometheus::Registry& registry,
                             std::span<const LayerIndex> layers) {
  for (LayerIndex layer : layers) {
    const MetricLabels labels = {{"layer", std::to_string(layer.value)}};
    layers_[layer] = {
        &AddCounter(registry, "trunkline_layer_routes_selected_total",
                    "Routes that the layer's router chose", labels),
        &AddCounter(registry, "trunkline_layer_routes_executed_total",
                    "Routes of the layer whose expert's output was added to "
                    "its row",
                    labels),
        &AddCounter(registry, "trunkline_layer_routes_dropped_total",
                    "Routes of the layer that fixed capacity dropped", labels)};
  }
}

std::vector<LayerRouteCounts> TrunkMetrics::LayerTotals() const {
  std::vector<LayerRouteCounts> totals;
  for (const auto& [layer, counters] : layers_) {
    totals.push_back({layer, static_cast<uint64_t>(counters.selected->Value()),
                      static_cast<uint64_t>(counters.executed->Value()),
                      static_cast<uint64_t>(counters.dropped->Value())});
  }
  return totals;
}

void TrunkMetrics::OnStep(const StepStats& step) {
  steps_.Increment();
  if (step.failed) steps_failed_.Increment();
  if (step.broken_contract.has_value())
    broken_contracts_.at(*step.broken_contract)->Increment();
  rows_.Increment(static_cast<double>(step.rows));
  decode_rows_.Increment(static_cast<double>(step.decode_rows));
  routes_selected_.Increment(static_cast<double>(step.routes.selected));
  routes_accepted_.Increment(static_cast<double>(step.routes.accepted));
  routes_dropped_.Increment(static_cast<double>(step.routes.dropped));
  routes_combined_.Increment(static_cast<double>(step.routes.returned));
  for (const LayerRouteCounts& layer : step.layer_routes) {
    const auto counters = layers_.find(layer.layer);
    if (counters == layers_.end()) continue;
    counters->second.selected->Increment(static_cast<double>(layer.selected));
    counters->second.executed->Increment(static_cast<double>(layer.executed));
    counters->second.dropped->Increment(static_cast<double>(layer.dropped));
  }
  step_seconds_.Observe(absl::ToDoubleSeconds(step.time));
}

void TrunkMetrics::OnLayerValidated() { layers_validated_.Increment(); }

void TrunkMetrics::OnRecompute(uint64_t sequences) {
  recomputed_.Increment(static_cast<double>(sequences));
}

void TrunkMetrics::OnFirstToken(absl::Duration since_arrival) {
  first_token_seconds_.Observe(absl::ToDoubleSeconds(since_arrival));
}

void TrunkMetrics::OnRequestEnd(const absl::Status& status,
                                const Usage& usage) {
  requests_[static_cast<size_t>(status.code())]->Increment();
  prompt_tokens_.Increment(static_cast<double>(usage.prompt_tokens));
  output_tokens_.Increment(
      static_cast<double>(usage.output_tokens - usage.resumed_tokens));
}

void TrunkMetrics::OnState(const EngineStats& stats) {
  running_.Set(static_cast<double>(stats.running));
  waiting_.Set(static_cast<double>(stats.waiting));
  state_bytes_.Set(static_cast<double>(stats.state_bytes_used));
  state_limit_bytes_.Set(static_cast<double>(stats.state_bytes_total));
  ready_.Set(stats.readiness.ok() ? 1 : 0);
}

void TrunkMetrics::OnHold(size_t requests) {
  const double more = static_cast<double>(requests) - held_.Value();
  if (more > 0) held_total_.Increment(more);
  held_.Set(static_cast<double>(requests));
}

void TrunkMetrics::OnCanary(bool done) {
  (done ? canary_done_ : canary_failed_).Increment();
}

void TrunkMetrics::OnPlacement(PlacementVersion active) {
  placement_version_.Set(active.valid() ? static_cast<double>(active.value)
                                        : 0.0);
}

}  // namespace trunkline::trunk
