#include "tests/golden/plain_experts.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/combine_rows.h"

namespace trunkline::testing {

absl::StatusOr<std::unique_ptr<PlainExperts>> PlainExperts::Load(
    const model::Checkpoint& checkpoint,
    const kernels::KernelContext& context) {
  auto experts = std::make_unique<PlainExperts>();
  for (const model::LayerSpec& spec : checkpoint.config().layers) {
    if (spec.kind != model::LayerKind::kMoe) continue;
    for (uint32_t e = 0; e < spec.moe.experts; ++e) {
      TL_ASSIGN_OR_RETURN(const auto map,
                          checkpoint.MapExpert(spec.index, ExpertId(e)));
      const std::string prefix =
          absl::StrCat("layers.", spec.index.value, ".mixer.experts.", e, ".");
      kernels::MlpWeights weights;
      TL_ASSIGN_OR_RETURN(const TensorView up,
                          map->Find(prefix + "up_proj.weight"));
      TL_ASSIGN_OR_RETURN(weights.up, kernels::PackedMatrix::Pack(
                                          up, *context.pool, context.numerics));
      TL_ASSIGN_OR_RETURN(const TensorView down,
                          map->Find(prefix + "down_proj.weight"));
      TL_ASSIGN_OR_RETURN(
          weights.down,
          kernels::PackedMatrix::Pack(down, *context.pool, context.numerics));
      experts->experts_.emplace(std::pair(spec.index, ExpertId(e)),
                                std::move(weights));
    }
  }
  return experts;
}

absl::Status PlainExperts::Finish(const trunk::MoeCall& call) {
  const routing::RouteTable& routes = *call.routes;
  std::vector<size_t> order(routes.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(routes.token_id[a], routes.expert_id[a]) <
           std::pair(routes.token_id[b], routes.expert_id[b]);
  });
  std::vector<std::vector<float>> outputs(order.size());
  std::vector<kernels::Contribution> contributions;
  std::vector<uint32_t> offsets(routes.rows + 1, 0);
  for (size_t i = 0; i < order.size(); ++i) {
    const size_t route = order[i];
    outputs[i].resize(call.width);
    const kernels::MlpGroup group{
        &experts_.at({call.layer, routes.expert_id[route]}), 0, 1};
    kernels::GroupedMlpArgs args;
    args.x = call.rows + routes.token_id[route] * call.row_stride;
    args.x_stride = call.row_stride;
    args.groups = {&group, 1};
    args.y = outputs[i].data();
    args.y_stride = call.width;
    args.out = call.activation;
    kernels::reference::GroupedMlp(args);
    contributions.push_back(
        {reinterpret_cast<const std::byte*>(outputs[i].data()),
         routes.gate[route], false, DType::kF32});
    ++offsets[routes.token_id[route] + 1];
  }
  std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
  kernels::CombineArgs combine;
  combine.offsets = offsets;
  combine.contributions = contributions;
  combine.width = call.width;
  combine.y = call.combined;
  combine.y_stride = call.combined_stride;
  combine.out = call.activation;
  kernels::reference::CombineRows(combine);
  if (call.routes_added != nullptr) *call.routes_added = contributions.size();
  return absl::OkStatus();
}

}  // namespace trunkline::testing
