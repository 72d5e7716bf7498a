#pragma once

// Who looks at the routed layers of a step while it runs. Called on the
// engine's thread; everything that is handed over is valid for the call only.

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "common/ids.h"
#include "kernels/kernel_context.h"
#include "routing/route_table.h"
#include "routing/sequence_admission.h"
#include "trunk_worker/expert_exchange.h"

namespace trunkline::trunk {

struct StepPlan;

struct ObservedLayer {
  StepId step;
  LayerIndex layer;
  const routing::RouteTable* routes = nullptr;
  std::span<const float> scores;  // [rows, experts], after the transform
  // Under fixed capacity: the gates before admission, [routes], and the routing
  // groups as they were then. None: dropless.
  std::span<const float> selected_gates;
  const routing::SequenceGroups* groups = nullptr;
  // Where the routes ran; no executions: in this process, or not at all.
  const RoutesExecuted* executed = nullptr;
  // The experts' input and the sum of what they gave: [rows, width].
  std::span<const float> hidden, combined;
  int64_t width = 0;
  kernels::Activation activation = kernels::Activation::kF32;
  bool completed = false;  // false: the step ends here with an error
};

class LayerObserver {
 public:
  virtual ~LayerObserver() = default;
  // Asked before the layer's routes go away: whether OnLayer shall be called.
  virtual bool Wants(LayerIndex layer) = 0;
  // Whether the contributions shall be there; they cost memory and a copy.
  virtual bool WantsContributions() { return false; }
  // An error ends the step with it.
  virtual absl::Status OnLayer(const ObservedLayer& layer) = 0;
};

class StepObserver {
 public:
  virtual ~StepObserver() = default;
  // Before a step's first layer. Null: nobody looks at this step.
  virtual LayerObserver* BeginStep(const StepPlan& plan,
                                   PlacementVersion version) = 0;
  // After a step has been counted (Engine::Options::on_step), also one that
  // failed. Once for each BeginStep.
  virtual void EndStep() = 0;
};

}  // namespace trunkline::trunk
