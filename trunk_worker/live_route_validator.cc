#include "trunk_worker/live_route_validator.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "routing/route_validator.h"

namespace trunkline::trunk {

LiveRouteValidator::LiveRouteValidator(RecordingHeader layers,
                                       std::function<void()> on_validated)
    : layers_(std::move(layers)), on_validated_(std::move(on_validated)) {}

LayerObserver* LiveRouteValidator::BeginStep(const StepPlan& plan,
                                             PlacementVersion version) {
  step_.Take(plan, version);
  return this;
}

absl::Status LiveRouteValidator::OnLayer(const ObservedLayer& seen) {
  // The step ends with an error of its own.
  if (!seen.completed) return absl::OkStatus();
  const absl::Status valid = Validate(seen);
  if (valid.ok()) on_validated_();
  return Annotate(valid, absl::StrCat("step ", seen.step.value, ", layer ",
                                      seen.layer.value));
}

absl::Status LiveRouteValidator::Validate(const ObservedLayer& seen) {
  const RecordedLayer* layer = layers_.Find(seen.layer);
  if (layer == nullptr)
    return routing::BrokenContract(routing::RouteContract::kShapes,
                                   "the model has no such moe layer");
  const absl::StatusOr<RecordedRoutes> routes =
      RecordOf(CaptureLayer(seen, step_), *layer);
  if (!routes.ok())
    return routing::BrokenContract(routing::RouteContract::kShapes,
                                   routes.status().message());
  const routing::LayerRecord& record = routes->record;
  // Serving packs rows: the hand-off's order is that of the experts' rows.
  const auto width = static_cast<size_t>(seen.width);
  const std::vector<float>& added = seen.executed->contributions;
  input_.clear();
  gates_.clear();
  output_.clear();
  for (uint32_t route : record.handoff_routes) {
    const auto token =
        seen.hidden.begin() +
        static_cast<int64_t>(record.table.token_id[route] * width);
    const auto row = added.begin() + static_cast<int64_t>(route * width);
    input_.insert(input_.end(), token, token + seen.width);
    gates_.push_back(record.table.gate[route]);
    output_.insert(output_.end(), row, row + seen.width);
  }
  routing::ExecutionEvidence evidence;
  evidence.width = seen.width;
  evidence.hidden = seen.hidden;
  evidence.input = input_;
  evidence.row_gate = gates_;
  evidence.output = output_;
  evidence.output_gated = true;
  evidence.combined = seen.combined;
  evidence.combined_bf16 = seen.activation == kernels::Activation::kBf16;
  const auto violation =
      routing::FindViolation(routing::LayerChecks(), record, &evidence);
  if (!violation.has_value()) return absl::OkStatus();
  return routing::BrokenContract(violation->contract, violation->detail);
}

}  // namespace trunkline::trunk
