#pragma once

// What the layer walk needs from wherever the experts are: send a layer's
// routes away, do something else, take the combined rows back. Implementations:
// ExpertLink (over a Transport, to expert workers) and LocalExperts (same
// process, no placement).

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/ids.h"
#include "dispatch/layer_exchange.h"
#include "kernels/kernel_context.h"
#include "routing/route_table.h"
#include "trunk_worker/step_phase.h"

namespace trunkline::trunk {

// Where the routes of a finished call ran and what they added, for those who
// record or validate it.
struct RoutesExecuted {
  WorkerId origin;                               // the trunk
  std::vector<dispatch::RouteExecution> routes;  // [route rows]
  // Asked for by the caller: [route rows, width] gate x expert output of each
  // accepted route, as it was added; zero for the others.
  bool wants_contributions = false;
  std::vector<float> contributions;
};

struct MoeCall {
  StepId step;
  LayerIndex layer;
  const routing::RouteTable* routes = nullptr;  // outlives Finish
  const float* rows = nullptr;  // [routes->rows, width], the experts' input
  int64_t row_stride = 0;
  int64_t width = 0;  // hidden size, or the latent width
  kernels::Activation activation = kernels::Activation::kF32;
  float* combined =
      nullptr;  // [routes->rows, width], written by Finish, rounded once
  int64_t combined_stride = 0;
  PhaseObserver* phases = nullptr;  // may be null
  // Not null: an OK Finish fills the contributions that are asked for, and over
  // a network also origin and routes.
  RoutesExecuted* executed = nullptr;
  // Not null: an OK Finish writes how many routes it added.
  uint64_t* routes_added = nullptr;
};

inline void EnterPhase(const MoeCall& call, StepPhase phase) {
  if (call.phases != nullptr) call.phases->Enter(phase);
}

class ExpertExchange {
 public:
  virtual ~ExpertExchange() = default;
  // OK when a step can start now (an active placement exists and its workers
  // are reachable); else UNAVAILABLE saying what is missing.
  virtual absl::Status Ready() = 0;
  // Pins the placement version that the step runs under (0 when there is none
  // to pin). EndStep unpins.
  virtual absl::StatusOr<PlacementVersion> BeginStep(StepId step) = 0;
  virtual void EndStep(StepId step) = 0;
  // Begin sends and returns; Finish waits for every route and combines. Exactly
  // one Finish per OK Begin. An error ends the step: UNAVAILABLE (worker,
  // layer, expert named), DEADLINE_EXCEEDED, INTERNAL.
  virtual absl::Status Begin(const MoeCall& call) = 0;
  virtual absl::Status Finish(const MoeCall& call) = 0;
};

}  // namespace trunkline::trunk
