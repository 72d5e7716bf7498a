#pragma once

// --validate-routes: holds each routed layer of each step to every contract of
// routing/route_validator.h while it is served. The layer becomes the record
// that a recording would hold, and is validated with the contributions that
// were added, so that every combined row is proven to the bit. A broken
// contract ends the step.
//
// On the engine's thread.

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "trunk_worker/captured_layer.h"
#include "trunk_worker/layer_observer.h"
#include "trunk_worker/route_record.h"

namespace trunkline::trunk {

class LiveRouteValidator final : public StepObserver, private LayerObserver {
 public:
  // layers: every moe layer of the model. on_validated: after each layer that
  // keeps its contracts.
  LiveRouteValidator(RecordingHeader layers,
                     std::function<void()> on_validated);

  LayerObserver* BeginStep(const StepPlan& plan,
                           PlacementVersion version) override;
  void EndStep() override {}

 private:
  bool Wants(LayerIndex) override { return true; }
  bool WantsContributions() override { return true; }
  absl::Status OnLayer(const ObservedLayer& seen) override;
  absl::Status Validate(const ObservedLayer& seen);

  const RecordingHeader layers_;
  const std::function<void()> on_validated_;
  StepRows step_;
  std::vector<float> input_, gates_, output_;  // in the experts' order
};

}  // namespace trunkline::trunk
