#include "trunk_worker/trunk_registration.h"

#include "kernels/kernel_context.h"

namespace trunkline::trunk {
namespace {

std::vector<placement::MoeLayerShape> PlacedShapes(
    const model::Checkpoint& checkpoint) {
  std::vector<placement::MoeLayerShape> shapes;
  for (const model::LayerSpec& spec : checkpoint.config().layers) {
    if (spec.kind != model::LayerKind::kMoe) continue;
    int64_t bytes = 0;
    for (const model::TensorInfo& tensor : checkpoint.tensors()) {
      if (tensor.role == model::TensorRole::kRoutedExpert &&
          tensor.layer == spec.index)
        bytes += tensor.bytes;
    }
    shapes.push_back({spec.index, spec.moe.experts, bytes / spec.moe.experts});
  }
  return shapes;
}

}  // namespace

control::Registration TrunkRegistration(
    const model::Checkpoint& checkpoint,
    const routing::AdmissionPolicy& admission, kernels::Numerics numerics,
    const std::string& self_check_digest) {
  control::Registration registration;
  registration.role = control::Role::kTrunk;
  registration.model_digest = checkpoint.digest();
  registration.numerics_class = kernels::NumericsName(numerics);
  registration.self_check_digest = self_check_digest;
  registration.moe_layers = PlacedShapes(checkpoint);
  registration.admission = routing::SpecOf(admission);
  return registration;
}

}  // namespace trunkline::trunk
