#include "trunk_worker/local_experts.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "trunk_worker/expert_link_frames.h"

namespace trunkline::trunk {

namespace {

absl::StatusOr<kernels::MlpWeights> LoadExpert(
    const model::Checkpoint& checkpoint, LayerIndex layer, ExpertId expert,
    const kernels::KernelContext& context) {
  TL_ASSIGN_OR_RETURN(const std::unique_ptr<model::WeightMap> map,
                      checkpoint.MapExpert(layer, expert));
  const std::string base =
      absl::StrCat("layers.", layer.value, ".mixer.experts.", expert.value);
  TL_ASSIGN_OR_RETURN(const TensorView up, map->Find(base + ".up_proj.weight"));
  TL_ASSIGN_OR_RETURN(const TensorView down,
                      map->Find(base + ".down_proj.weight"));
  kernels::MlpWeights weights;
  TL_ASSIGN_OR_RETURN(weights.up, kernels::PackedMatrix::Pack(
                                      up, *context.pool, context.numerics));
  TL_ASSIGN_OR_RETURN(weights.down, kernels::PackedMatrix::Pack(
                                        down, *context.pool, context.numerics));
  return weights;
}

// Each thread takes whole experts: mapping the source, clearing new memory and
// unmapping cost as much as packing, and none of them runs on many threads for
// one expert.
absl::StatusOr<std::vector<kernels::MlpWeights>> LoadLayer(
    const model::Checkpoint& checkpoint, const model::LayerSpec& spec,
    const kernels::KernelContext& context) {
  const auto count = static_cast<size_t>(spec.moe.experts);
  std::vector<kernels::MlpWeights> experts(count);
  std::vector<absl::Status> failed(count);
  context.pool->ParallelFor(static_cast<int64_t>(count), [&](int64_t e, int) {
    const auto at = static_cast<size_t>(e);
    ThreadPool alone{ThreadPool::Options{}};
    absl::StatusOr<kernels::MlpWeights> weights =
        LoadExpert(checkpoint, spec.index, ExpertId(static_cast<uint32_t>(e)),
                   kernels::KernelContext{&alone, context.numerics});
    failed[at] = weights.status();
    if (weights.ok()) experts[at] = *std::move(weights);
  });
  for (const absl::Status& status : failed) TL_RETURN_IF_ERROR(status);
  return experts;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalExperts>> LocalExperts::Load(
    const model::Checkpoint& checkpoint,
    const kernels::KernelContext& context) {
  std::unique_ptr<LocalExperts> local(new LocalExperts(context));
  for (const model::LayerSpec& spec : checkpoint.config().layers) {
    if (spec.kind != model::LayerKind::kMoe) continue;
    TL_ASSIGN_OR_RETURN(local->layers_[spec.index],
                        LoadLayer(checkpoint, spec, context));
    for (const kernels::MlpWeights& weights : local->layers_[spec.index])
      local->bytes_ += weights.bytes();
  }
  return local;
}

absl::Status LocalExperts::Begin(const MoeCall& call) {
  const auto layer = layers_.find(call.layer);
  if (layer == layers_.end() ||
      static_cast<int64_t>(layer->second.size()) != call.routes->experts)
    return absl::InternalError(
        absl::StrCat("layer ", call.layer.value, " routes over ",
                     call.routes->experts, " experts, the checkpoint has ",
                     layer == layers_.end() ? 0 : layer->second.size()));
  return CheckMoeCall(call);
}

absl::Status LocalExperts::Finish(const MoeCall& call) {
  EnterPhase(call, StepPhase::kDispatch);
  GroupRoutes(call, layers_.at(call.layer));
  const size_t floats = row_of_.size() * static_cast<size_t>(call.width);
  if (y_.size() < floats * sizeof(float))
    y_ = AlignedBuffer((floats + floats / 4) * sizeof(float));
  if (!groups_.empty()) {
    EnterPhase(call, StepPhase::kExperts);
    kernels::GroupedMlpArgs args;
    args.x = call.rows;
    args.x_stride = call.row_stride;
    args.row_index = row_of_.data();
    args.groups = groups_;
    args.y = y_.as<float>();
    args.y_stride = call.width;
    args.out = call.activation;
    kernels::GroupedMlp(context_, args, &scratch_);
  }
  EnterPhase(call, StepPhase::kCombine);
  CombineOutputs(call);
  return absl::OkStatus();
}

// Accepted routes by expert, inside an expert in table order.
void LocalExperts::GroupRoutes(
    const MoeCall& call, const std::vector<kernels::MlpWeights>& experts) {
  const routing::RouteTable& table = *call.routes;
  next_.assign(experts.size() + 1, 0);
  const auto accepted = [&](int64_t r) {
    return table.fate[r] == routing::RouteFate::kAccepted;
  };
  for (int64_t r = 0; r < table.size(); ++r) {
    if (accepted(r)) ++next_[table.expert_id[r].value + 1];
  }
  groups_.clear();
  for (size_t e = 0; e < experts.size(); ++e) {
    const uint32_t count = next_[e + 1];
    if (count > 0) groups_.push_back({&experts[e], next_[e], count});
    next_[e + 1] += next_[e];
  }
  row_of_.resize(next_[experts.size()]);
  grouped_of_.assign(table.size(), 0);
  for (int64_t r = 0; r < table.size(); ++r) {
    if (!accepted(r)) continue;
    const uint32_t at = next_[table.expert_id[r].value]++;
    row_of_[at] = table.token_id[r];
    grouped_of_[r] = at;
  }
}

void LocalExperts::CombineOutputs(const MoeCall& call) {
  dispatch::PlanCombine(*call.routes, &combine_plan_);
  contributions_.resize(combine_plan_.order.size());
  for (size_t i = 0; i < contributions_.size(); ++i) {
    const uint32_t r = combine_plan_.order[i];
    kernels::Contribution& c = contributions_[i];
    c.values = y_.data() + static_cast<int64_t>(grouped_of_[r]) * call.width *
                               static_cast<int64_t>(sizeof(float));
    c.gate = call.routes->gate[r];
    c.gated = false;
    c.dtype = DType::kF32;
  }
  kernels::CombineArgs args;
  args.offsets = combine_plan_.offsets;
  args.contributions = contributions_;
  args.width = call.width;
  args.y = call.combined;
  args.y_stride = call.combined_stride;
  args.out = call.activation;
  kernels::CombineRows(context_, args);
  ReportContributions(call, combine_plan_, contributions_);
}

}  // namespace trunkline::trunk
