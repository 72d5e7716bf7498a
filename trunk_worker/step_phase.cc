#include "trunk_worker/step_phase.h"

namespace trunkline::trunk {

absl::string_view StepPhaseName(StepPhase phase) {
  switch (phase) {
    case StepPhase::kRest:
      return "rest";
    case StepPhase::kNorm:
      return "norm";
    case StepPhase::kMambaProject:
      return "mamba_project";
    case StepPhase::kMambaScan:
      return "mamba_scan";
    case StepPhase::kAttentionProject:
      return "attention_project";
    case StepPhase::kAttention:
      return "attention";
    case StepPhase::kDense:
      return "dense";
    case StepPhase::kRouter:
      return "router";
    case StepPhase::kLatent:
      return "latent";
    case StepPhase::kShared:
      return "shared";
    case StepPhase::kDispatch:
      return "dispatch";
    case StepPhase::kExperts:
      return "experts";
    case StepPhase::kCombine:
      return "combine";
    case StepPhase::kHead:
      return "head";
    case StepPhase::kSample:
      return "sample";
  }
  return "?";
}

}  // namespace trunkline::trunk
