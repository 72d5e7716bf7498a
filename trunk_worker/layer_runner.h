#pragma once

// The layer walk: from token ids to logits, layer by layer, one function per
// layer kind. Arithmetic and roundings: nemotron-h.md, section 3.
//
// Owns the activations and knows sequence state, but no request, no text and no
// clock. Called by the engine thread only.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/ids.h"
#include "kernels/attention.h"
#include "kernels/kernel_context.h"
#include "kernels/mamba.h"
#include "model/model_config.h"
#include "routing/admission.h"
#include "routing/route_table.h"
#include "routing/router_policy.h"
#include "routing/sequence_admission.h"
#include "trunk_worker/activations.h"
#include "trunk_worker/expert_exchange.h"
#include "trunk_worker/layer_observer.h"
#include "trunk_worker/sequence_state.h"
#include "trunk_worker/step_phase.h"
#include "trunk_worker/trunk_weights.h"

namespace trunkline::trunk {

enum class LogitRows : uint8_t { kNone, kLast, kAll };

// Consecutive rows of one sequence: a prefill chunk, or one decode row.
struct RowRun {
  SequenceState* state = nullptr;   // the rows' positions start at its length
  std::span<const int32_t> tokens;  // at least one; ids below the vocabulary
  LogitRows logits = LogitRows::kLast;
};

// Logits of the wanted rows, in run order and row order. Valid until the next
// step.
struct StepLogits {
  struct Row {
    size_t run = 0;
    int64_t row = 0;  // within the run
  };
  std::vector<Row> rows;
  const float* values = nullptr;
  int64_t vocab = 0;
  std::span<const float> operator[](size_t i) const {
    return {values + static_cast<int64_t>(i) * vocab,
            static_cast<size_t>(vocab)};
  }
};

// Routes of a step, over all its moe layers.
struct RouteCounts {
  uint64_t selected = 0;
  uint64_t accepted = 0;
  uint64_t dropped = 0;   // by fixed capacity: selected - accepted
  uint64_t returned = 0;  // executed, and their sum taken
};

// Of one run of a step, over all its moe layers.
struct RunRouteCounts {
  uint64_t selected = 0;
  uint64_t dropped = 0;
};

// Of a step, per moe layer it came to.
struct LayerRouteCounts {
  LayerIndex layer;
  uint64_t selected = 0;
  uint64_t executed = 0;  // accepted, executed, and their sum taken
  uint64_t dropped = 0;   // by fixed capacity
};

// The layer's router as routing/ knows it.
routing::RouterPolicy RouterPolicyOf(const model::MoeShape& moe);

class LayerRunner {
 public:
  enum class Tap : uint8_t { kBlockIn, kBlockOut };
  // The residual stream entering and leaving a layer: [rows, hidden].
  using TapFunction = std::function<void(LayerIndex, Tap, const float* rows,
                                         int64_t row_count)>;

  // All outlive the runner. Steps have at most rows_max rows. admission has
  // passed CheckServingAdmission; the states' layouts are made for it.
  LayerRunner(const model::ModelConfig* config, const TrunkWeights* weights,
              kernels::Activation activation, ExpertExchange* experts,
              const kernels::KernelContext& context, int64_t rows_max,
              routing::AdmissionPolicy admission = {});

  // Advances each run's state by its rows, exactly once. After an error the
  // states are half advanced and can only be destroyed; the step made nothing.
  absl::Status RunStep(StepId step, std::span<const RowRun> runs,
                       StepLogits* logits);

  // One layer alone, over `rows` of the residual stream [rows of runs, hidden],
  // changed in place. For tests that judge layers one at a time.
  absl::Status RunLayer(StepId step, LayerIndex layer,
                        std::span<const RowRun> runs, float* rows);

  void set_tap(TapFunction tap) { tap_ = std::move(tap); }
  // For tests that break what routing made, before it is looked at.
  using RouteFunction = std::function<void(LayerIndex, routing::RouteTable*)>;
  void set_route_tap(RouteFunction tap) { route_tap_ = std::move(tap); }
  // None: nobody looks. Stays until it is set again; asked in this order.
  void set_observers(std::vector<LayerObserver*> observers) {
    observers_ = std::move(observers);
  }
  void set_phases(PhaseObserver* phases) { phases_ = phases; }
  int64_t rows_max() const { return rows_max_; }
  // Of the last step, also one that failed.
  const RouteCounts& route_counts() const { return route_counts_; }
  std::span<const LayerRouteCounts> layer_route_counts() const {
    return layer_route_counts_;
  }
  std::span<const RunRouteCounts> run_route_counts() const {
    return run_route_counts_;
  }

 private:
  void Enter(StepPhase phase) {
    if (phases_ != nullptr) phases_->Enter(phase);
  }
  void BeginRuns(std::span<const RowRun> runs);
  void Embed(std::span<const RowRun> runs);
  absl::Status Layer(StepId step, const model::LayerSpec& spec);
  void Mamba(const model::LayerSpec& spec, const MambaWeights& w);
  void Attention(const model::LayerSpec& spec, const AttentionWeights& w);
  void Mlp(const kernels::MlpWeights& w, float* out);
  absl::Status Moe(StepId step, const model::LayerSpec& spec,
                   const MoeWeights& w);
  absl::Status Route(const model::LayerSpec& spec, const MoeWeights& w);
  // What admission makes of the layer's selection; the routes it dropped.
  int64_t Admit(LayerIndex layer);
  absl::Status Exchange(MoeCall call, const MoeWeights& w, bool shared);
  // Asks who wants to see the layer, and what they need.
  void AskObservers(LayerIndex layer);
  absl::Status ShowLayer(const MoeCall& call, bool completed);
  void Head(std::span<const RowRun> runs, StepLogits* logits);

  void Norm(const float* x, const std::vector<float>& weight, float* y);
  void Project(const float* x, const kernels::PackedMatrix& w, float* y,
               kernels::Activation out);
  std::span<const kernels::StateSegment> Segments(
      LayerIndex layer, std::byte* (SequenceState::*state)(LayerIndex));

  const model::ModelConfig& config_;
  const TrunkWeights& weights_;
  const kernels::Activation activation_;
  ExpertExchange& experts_;
  const kernels::KernelContext context_;
  const int64_t rows_max_;
  const routing::AdmissionPolicy admission_;
  Activations act_;
  TapFunction tap_;
  RouteFunction route_tap_;
  std::vector<LayerObserver*> observers_;
  std::vector<LayerObserver*> watching_;  // the layer under way
  PhaseObserver* phases_ = nullptr;
  RouteCounts route_counts_;
  std::vector<LayerRouteCounts> layer_route_counts_;
  std::vector<RunRouteCounts> run_route_counts_;
  RoutesExecuted routes_executed_;
  routing::RouteTable routes_;
  std::vector<routing::SequenceRows> sequence_rows_;
  std::vector<float> selected_gates_;  // when somebody watches a fixed capacity
  routing::SequenceGroups groups_;

  // The step under way.
  struct Run {
    SequenceState* state = nullptr;
    int64_t row_begin = 0;
    int64_t row_count = 0;
    int64_t position = 0;
  };
  std::vector<Run> runs_;
  int64_t rows_ = 0;
  std::vector<kernels::StateSegment> state_segments_;
  std::vector<kernels::AttentionSegment> attention_segments_;
  std::vector<int32_t> ids_;
  std::vector<uint32_t> logit_index_;
};

}  // namespace trunkline::trunk
