#include "trunk_worker/layer_runner.h"

#include <cmath>
#include <cstring>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "kernels/matmul.h"
#include "kernels/row_ops.h"
#include "routing/route_validator.h"

namespace trunkline::trunk {

using kernels::Activation;
using model::LayerKind;

routing::RouterPolicy RouterPolicyOf(const model::MoeShape& m) {
  return {m.experts, m.top_k, m.n_group, m.topk_group, m.normalize, m.scale};
}

LayerRunner::LayerRunner(const model::ModelConfig* config,
                         const TrunkWeights* weights, Activation activation,
                         ExpertExchange* experts,
                         const kernels::KernelContext& context,
                         int64_t rows_max, routing::AdmissionPolicy admission)
    : config_(*config),
      weights_(*weights),
      activation_(activation),
      experts_(*experts),
      context_(context),
      rows_max_(rows_max),
      admission_(std::move(admission)),
      act_(Activations::For(*config, rows_max)) {}

absl::Status LayerRunner::RunStep(StepId step, std::span<const RowRun> runs,
                                  StepLogits* logits) {
  Enter(StepPhase::kRest);
  BeginRuns(runs);
  route_counts_ = {};
  layer_route_counts_.clear();
  Embed(runs);
  for (const model::LayerSpec& spec : config_.layers)
    TL_RETURN_IF_ERROR(Layer(step, spec));
  Head(runs, logits);
  Enter(StepPhase::kRest);
  for (const Run& run : runs_) run.state->CommitStep();
  return absl::OkStatus();
}

absl::Status LayerRunner::RunLayer(StepId step, LayerIndex layer,
                                   std::span<const RowRun> runs, float* rows) {
  BeginRuns(runs);
  const size_t bytes = rows_ * config_.hidden_size * sizeof(float);
  std::memcpy(act_.residual.data(), rows, bytes);
  TL_RETURN_IF_ERROR(Layer(step, config_.layers[layer.value]));
  std::memcpy(rows, act_.residual.data(), bytes);
  for (const Run& run : runs_) run.state->CommitStep();
  return absl::OkStatus();
}

void LayerRunner::BeginRuns(std::span<const RowRun> runs) {
  runs_.clear();
  run_route_counts_.assign(runs.size(), {});
  rows_ = 0;
  for (const RowRun& run : runs) {
    const int64_t count = static_cast<int64_t>(run.tokens.size());
    runs_.push_back({run.state, rows_, count, run.state->length()});
    run.state->BeginStep(count);
    rows_ += count;
  }
  TL_CHECK_GT(rows_, 0);
  TL_CHECK_LE(rows_, rows_max_);
}

void LayerRunner::Embed(std::span<const RowRun> runs) {
  ids_.clear();
  for (const RowRun& run : runs)
    ids_.insert(ids_.end(), run.tokens.begin(), run.tokens.end());
  kernels::EmbedRows(context_, weights_.embedding(), ids_.data(), rows_,
                     act_.residual.data(), config_.hidden_size);
}

// x = round(x + mixer(norm(x))).
absl::Status LayerRunner::Layer(StepId step, const model::LayerSpec& spec) {
  const LayerWeights& w = weights_.layers()[spec.index.value];
  if (tap_) tap_(spec.index, Tap::kBlockIn, act_.residual.data(), rows_);
  Enter(StepPhase::kNorm);
  Norm(act_.residual.data(), w.norm, act_.normed.data());
  switch (spec.kind) {
    case LayerKind::kMamba:
      Mamba(spec, std::get<MambaWeights>(w.mixer));
      break;
    case LayerKind::kAttention:
      Attention(spec, std::get<AttentionWeights>(w.mixer));
      break;
    case LayerKind::kMlp:
      Enter(StepPhase::kDense);
      Mlp(std::get<kernels::MlpWeights>(w.mixer), act_.mixer_out.data());
      break;
    case LayerKind::kMoe:
      TL_RETURN_IF_ERROR(Moe(step, spec, std::get<MoeWeights>(w.mixer)));
      break;
  }
  const int64_t hidden = config_.hidden_size;
  Enter(StepPhase::kNorm);
  kernels::AddRows(context_, act_.residual.data(), hidden,
                   act_.mixer_out.data(), hidden, rows_, hidden, activation_);
  if (tap_) tap_(spec.index, Tap::kBlockOut, act_.residual.data(), rows_);
  return absl::OkStatus();
}

// nemotron-h.md 3.3 to 3.6.
void LayerRunner::Mamba(const model::LayerSpec& spec, const MambaWeights& w) {
  const model::MambaShape& m = spec.mamba;
  const int64_t stride = m.in_proj_rows();
  Enter(StepPhase::kMambaProject);
  Project(act_.normed.data(), w.in_proj, act_.in_proj.data(), activation_);
  const float* z = act_.in_proj.data();
  const float* xbc = z + m.inner();
  const float* dt = xbc + m.conv_dim();

  Enter(StepPhase::kMambaScan);
  kernels::CausalConvArgs conv;
  conv.x = xbc;
  conv.x_stride = stride;
  conv.channels = m.conv_dim();
  conv.kernel = m.conv_kernel;
  conv.weight = w.conv_weight.data();
  conv.bias = w.conv_bias.empty() ? nullptr : w.conv_bias.data();
  conv.segments = Segments(spec.index, &SequenceState::conv_state);
  conv.y = act_.conv_out.data();
  conv.y_stride = m.conv_dim();
  conv.out = activation_;
  kernels::CausalConv(context_, conv);

  kernels::SelectiveScanArgs scan;
  scan.x = act_.conv_out.data();
  scan.x_stride = m.conv_dim();
  scan.dt = dt;
  scan.dt_stride = stride;
  scan.dt_bias = w.dt_bias.data();
  scan.a = w.a.data();
  scan.d = w.d.data();
  scan.dt_min = m.dt_min;
  scan.dt_max = m.dt_max;
  scan.heads = m.heads;
  scan.head_dim = m.head_dim;
  scan.groups = m.groups;
  scan.state_size = m.state_size;
  scan.segments = Segments(spec.index, &SequenceState::scan_state);
  scan.y = act_.scan_out.data();
  scan.y_stride = m.inner();
  scan.out = activation_;
  kernels::SelectiveScan(context_, scan);

  kernels::GatedRmsNormArgs norm;
  norm.x = act_.scan_out.data();
  norm.x_stride = m.inner();
  norm.z = z;
  norm.z_stride = stride;
  norm.rows = rows_;
  norm.width = m.inner();
  norm.group_size = m.inner() / m.groups;
  norm.weight = w.norm.data();
  norm.eps = config_.norm_eps;
  norm.y = act_.scan_out.data();
  norm.y_stride = m.inner();
  norm.out = activation_;
  kernels::GatedRmsNorm(context_, norm);

  Enter(StepPhase::kMambaProject);
  Project(act_.scan_out.data(), w.out_proj, act_.mixer_out.data(), activation_);
}

// nemotron-h.md 3.8.
void LayerRunner::Attention(const model::LayerSpec& spec,
                            const AttentionWeights& w) {
  const model::AttentionShape& a = spec.attention;
  Enter(StepPhase::kAttentionProject);
  Project(act_.normed.data(), w.q_proj, act_.q.data(), activation_);
  Project(act_.normed.data(), w.k_proj, act_.k.data(), activation_);
  Project(act_.normed.data(), w.v_proj, act_.v.data(), activation_);

  Enter(StepPhase::kAttention);
  attention_segments_.clear();
  for (const Run& run : runs_) {
    attention_segments_.push_back({run.row_begin, run.row_count, run.position,
                                   run.state->kv_blocks(spec.index)});
  }
  kernels::AttentionArgs args;
  args.q = act_.q.data();
  args.q_stride = a.heads * a.head_dim;
  args.k = act_.k.data();
  args.k_stride = a.kv_heads * a.head_dim;
  args.v = act_.v.data();
  args.v_stride = a.kv_heads * a.head_dim;
  args.heads = a.heads;
  args.kv_heads = a.kv_heads;
  args.head_dim = a.head_dim;
  args.scale = 1.0f / std::sqrt(static_cast<float>(a.head_dim));
  args.window = a.window;
  args.segments = attention_segments_;
  args.y = act_.attended.data();
  args.y_stride = a.heads * a.head_dim;
  args.out = activation_;
  kernels::Attention(context_, args);

  Enter(StepPhase::kAttentionProject);
  Project(act_.attended.data(), w.o_proj, act_.mixer_out.data(), activation_);
}

// nemotron-h.md 3.9: a dense layer, and the shared expert.
void LayerRunner::Mlp(const kernels::MlpWeights& w, float* out) {
  const kernels::MlpGroup group{&w, 0, rows_};
  kernels::GroupedMlpArgs args;
  args.x = act_.normed.data();
  args.x_stride = config_.hidden_size;
  args.groups = {&group, 1};
  args.y = out;
  args.y_stride = config_.hidden_size;
  args.out = activation_;
  kernels::GroupedMlp(context_, args, &act_.mlp_scratch);
}

// Section 4: fp32 scores, then the policy's choice.
absl::Status LayerRunner::Route(const model::LayerSpec& spec,
                                const MoeWeights& w) {
  const model::MoeShape& m = spec.moe;
  Enter(StepPhase::kRouter);
  float* scores = act_.scores.data();
  Project(act_.normed.data(), w.gate, scores, Activation::kF32);
  kernels::Sigmoid(context_, scores, m.experts, rows_, m.experts);
  const routing::RouterPolicy policy = RouterPolicyOf(m);
  const absl::Status status = routing::SelectRoutes(
      policy, {scores, static_cast<size_t>(rows_ * m.experts)}, rows_,
      w.correction_bias, &routes_);
  if (!status.ok()) {
    // The scores are this server's own work, so a bad one is not the caller's
    // argument.
    return absl::InternalError(absl::StrCat("layer ", spec.index.value,
                                            ", router: ", status.message()));
  }
  const int64_t dropped = Admit(spec.index);
  if (route_tap_) route_tap_(spec.index, &routes_);
  return Annotate(routing::CheckStepInvariants(policy, routes_, dropped),
                  absl::StrCat("layer ", spec.index.value));
}

int64_t LayerRunner::Admit(LayerIndex layer) {
  if (admission_.kind == routing::AdmissionKind::kDropless) return 0;
  sequence_rows_.clear();
  for (const Run& run : runs_) {
    sequence_rows_.push_back({run.row_begin, run.row_count, run.position,
                              run.state->expert_rows_used(layer)});
  }
  if (!watching_.empty()) {
    selected_gates_ = routes_.gate;
    routing::NameSequenceGroups(admission_, sequence_rows_, &groups_);
  }
  routing::AdmitSequences(admission_, sequence_rows_, &routes_);
  int64_t dropped = 0;
  for (const routing::SequenceRows& s : sequence_rows_) dropped += s.dropped;
  return dropped;
}

// nemotron-h.md 3.10 and 5: the shared expert runs while the routes are away.
absl::Status LayerRunner::Moe(StepId step, const model::LayerSpec& spec,
                              const MoeWeights& w) {
  const bool latent = spec.moe.latent > 0;
  const bool shared = spec.moe.shared_width > 0;
  const int64_t hidden = config_.hidden_size;
  AskObservers(spec.index);
  TL_RETURN_IF_ERROR(Route(spec, w));
  if (latent) {
    Enter(StepPhase::kLatent);
    Project(act_.normed.data(), w.fc1_latent, act_.latent_in.data(),
            activation_);
  }

  MoeCall call;
  call.step = step;
  call.layer = spec.index;
  call.routes = &routes_;
  call.width = spec.moe.expert_input(hidden);
  call.rows = latent ? act_.latent_in.data() : act_.normed.data();
  call.row_stride = call.width;
  call.activation = activation_;
  call.phases = phases_;
  call.combined = latent ? act_.latent_out.data() : act_.mixer_out.data();
  call.combined_stride = call.width;
  if (!watching_.empty()) call.executed = &routes_executed_;
  const absl::Status exchanged = Exchange(call, w, shared);
  const absl::Status shown = ShowLayer(call, exchanged.ok());
  TL_RETURN_IF_ERROR(exchanged);
  TL_RETURN_IF_ERROR(shown);

  if (latent) {
    Enter(StepPhase::kLatent);
    Project(act_.latent_out.data(), w.fc2_latent, act_.mixer_out.data(),
            activation_);
  }
  if (shared) {
    Enter(StepPhase::kNorm);
    kernels::AddRows(context_, act_.mixer_out.data(), hidden,
                     act_.shared_out.data(), hidden, rows_, hidden,
                     activation_);
  }
  return absl::OkStatus();
}

absl::Status LayerRunner::Exchange(MoeCall call, const MoeWeights& w,
                                   bool shared) {
  const uint64_t selected = routes_.expert_id.size();
  uint64_t dropped = 0;
  const bool fixed = admission_.kind != routing::AdmissionKind::kDropless;
  for (size_t i = 0; i < run_route_counts_.size(); ++i) {
    const auto lost =
        static_cast<uint64_t>(fixed ? sequence_rows_[i].dropped : 0);
    run_route_counts_[i].selected +=
        static_cast<uint64_t>(runs_[i].row_count * routes_.top_k);
    run_route_counts_[i].dropped += lost;
    dropped += lost;
  }
  const uint64_t routes = selected - dropped;
  uint64_t added = 0;
  call.routes_added = &added;
  route_counts_.selected += selected;
  route_counts_.accepted += routes;
  route_counts_.dropped += dropped;
  layer_route_counts_.push_back({call.layer, selected, 0, dropped});
  Enter(StepPhase::kDispatch);
  TL_RETURN_IF_ERROR(experts_.Begin(call));
  if (shared) {
    Enter(StepPhase::kShared);
    Mlp(w.shared, act_.shared_out.data());
  }
  TL_RETURN_IF_ERROR(experts_.Finish(call));
  if (added != routes) {
    return routing::BrokenContract(
        routing::RouteContract::kCompletion,
        absl::StrCat("step ", call.step.value, ", layer ", call.layer.value,
                     ": ", routes, " routes were accepted and ", added,
                     " were added"));
  }
  route_counts_.returned += routes;
  layer_route_counts_.back().executed = routes;
  return absl::OkStatus();
}

void LayerRunner::AskObservers(LayerIndex layer) {
  watching_.clear();
  routes_executed_.wants_contributions = false;
  for (LayerObserver* observer : observers_) {
    if (!observer->Wants(layer)) continue;
    watching_.push_back(observer);
    if (observer->WantsContributions())
      routes_executed_.wants_contributions = true;
  }
  routes_executed_.routes.clear();
}

absl::Status LayerRunner::ShowLayer(const MoeCall& call, bool completed) {
  if (watching_.empty()) return absl::OkStatus();
  ObservedLayer seen;
  seen.step = call.step;
  seen.layer = call.layer;
  seen.routes = &routes_;
  seen.scores = {act_.scores.data(),
                 static_cast<size_t>(routes_.rows * routes_.experts)};
  seen.executed = &routes_executed_;
  if (admission_.kind != routing::AdmissionKind::kDropless) {
    seen.selected_gates = selected_gates_;
    seen.groups = &groups_;
  }
  const auto floats = static_cast<size_t>(rows_ * call.width);
  seen.hidden = {call.rows, floats};
  seen.combined = {call.combined, floats};
  seen.width = call.width;
  seen.activation = call.activation;
  seen.completed = completed;
  absl::Status first;
  for (LayerObserver* observer : watching_) {
    const absl::Status status = observer->OnLayer(seen);
    if (first.ok()) first = status;
  }
  return first;
}

// Final norm and head, for the rows that are wanted only. Logits stay fp32.
void LayerRunner::Head(std::span<const RowRun> runs, StepLogits* logits) {
  logits->rows.clear();
  logit_index_.clear();
  for (size_t i = 0; i < runs.size(); ++i) {
    const Run& run = runs_[i];
    int64_t row = 0;
    if (runs[i].logits == LogitRows::kNone) row = run.row_count;
    if (runs[i].logits == LogitRows::kLast) row = run.row_count - 1;
    for (; row < run.row_count; ++row) {
      logits->rows.push_back({i, row});
      logit_index_.push_back(static_cast<uint32_t>(run.row_begin + row));
    }
  }
  logits->values = act_.logits.data();
  logits->vocab = config_.vocab_size;
  if (logit_index_.empty()) return;
  Enter(StepPhase::kNorm);
  Norm(act_.residual.data(), weights_.final_norm(), act_.normed.data());
  Enter(StepPhase::kHead);
  kernels::MatMulArgs args;
  args.x = act_.normed.data();
  args.x_stride = config_.hidden_size;
  args.row_index = logit_index_.data();
  args.rows = static_cast<int64_t>(logit_index_.size());
  args.w = &weights_.head();
  args.y = act_.logits.data();
  args.y_stride = config_.vocab_size;
  args.out = Activation::kF32;
  kernels::MatMul(context_, args);
}

void LayerRunner::Norm(const float* x, const std::vector<float>& weight,
                       float* y) {
  kernels::RmsNormArgs args;
  args.x = x;
  args.x_stride = config_.hidden_size;
  args.rows = rows_;
  args.width = config_.hidden_size;
  args.weight = weight.data();
  args.eps = config_.norm_eps;
  args.y = y;
  args.y_stride = config_.hidden_size;
  args.out = activation_;
  kernels::RmsNorm(context_, args);
}

// All rows of the step through one product; strides are the matrix's widths.
void LayerRunner::Project(const float* x, const kernels::PackedMatrix& w,
                          float* y, Activation out) {
  kernels::MatMulArgs args;
  args.x = x;
  args.x_stride = w.k();
  args.rows = rows_;
  args.w = &w;
  args.y = y;
  args.y_stride = w.n();
  args.out = out;
  kernels::MatMul(context_, args);
}

std::span<const kernels::StateSegment> LayerRunner::Segments(
    LayerIndex layer, std::byte* (SequenceState::*state)(LayerIndex)) {
  state_segments_.clear();
  for (const Run& run : runs_) {
    state_segments_.push_back(
        {run.row_begin, run.row_count, (run.state->*state)(layer)});
  }
  return state_segments_;
}

}  // namespace trunkline::trunk
