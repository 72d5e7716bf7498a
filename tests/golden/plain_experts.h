#pragma once

// Routed experts as the formula says, one route after another, with the
// reference kernels: the oracle that the real ways to the experts must equal
// bit for bit.

#include <map>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "kernels/kernel_context.h"
#include "kernels/mlp.h"
#include "model/checkpoint.h"
#include "trunk_worker/expert_exchange.h"

namespace trunkline::testing {

class PlainExperts : public trunk::ExpertExchange {
 public:
  static absl::StatusOr<std::unique_ptr<PlainExperts>> Load(
      const model::Checkpoint& checkpoint,
      const kernels::KernelContext& context);

  absl::Status Ready() override { return absl::OkStatus(); }
  absl::StatusOr<PlacementVersion> BeginStep(StepId) override {
    return PlacementVersion(0);
  }
  void EndStep(StepId) override {}
  absl::Status Begin(const trunk::MoeCall&) override {
    return absl::OkStatus();
  }
  absl::Status Finish(const trunk::MoeCall& call) override;

 private:
  std::map<std::pair<LayerIndex, ExpertId>, kernels::MlpWeights> experts_;
};

}  // namespace trunkline::testing
