#pragma once

// What a step does with its time. The layer walk and the experts say when they
// enter a phase; whoever watches reads the clock. With nobody watching it costs
// one comparison a phase.

#include <cstdint>

#include "absl/strings/string_view.h"

namespace trunkline::trunk {

enum class StepPhase : uint8_t {
  kRest,  // embedding, bookkeeping
  kNorm,  // norms and the additions to the residual stream
  kMambaProject,
  kMambaScan,  // convolution, scan, gated norm
  kAttentionProject,
  kAttention,
  kDense,
  kRouter,    // scores and choice
  kLatent,    // projections around latent experts
  kShared,    // the shared expert
  kDispatch,  // from routes to groups, or to frames on their way
  kExperts,   // computing them, or waiting for those who do
  kCombine,
  kHead,
  kSample,
};
inline constexpr int kStepPhases = 15;
absl::string_view StepPhaseName(StepPhase phase);  // "mamba_scan", ...

class PhaseObserver {
 public:
  virtual ~PhaseObserver() = default;
  // The time from this call to the next one belongs to `phase`. On the thread
  // that walks the layers.
  virtual void Enter(StepPhase phase) = 0;
};

}  // namespace trunkline::trunk
