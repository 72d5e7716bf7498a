#pragma once

// All routed experts in this process: the ExpertExchange of a model that fits
// one machine, and the oracle that the exchange over a network is compared
// with. No placement, no transport; the same grouped product and the same
// combine.
//
// Not thread-safe; engine thread only.

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/aligned_buffer.h"
#include "dispatch/combine_plan.h"
#include "kernels/combine_rows.h"
#include "kernels/kernel_context.h"
#include "kernels/mlp.h"
#include "model/checkpoint.h"
#include "trunk_worker/expert_exchange.h"

namespace trunkline::trunk {

class LocalExperts final : public ExpertExchange {
 public:
  // Loads and packs every routed expert of the checkpoint.
  static absl::StatusOr<std::unique_ptr<LocalExperts>> Load(
      const model::Checkpoint& checkpoint,
      const kernels::KernelContext& context);

  int64_t bytes() const { return bytes_; }

  absl::Status Ready() override { return absl::OkStatus(); }
  // Nothing to pin: version 0.
  absl::StatusOr<PlacementVersion> BeginStep(StepId) override {
    return PlacementVersion(0);
  }
  void EndStep(StepId) override {}
  absl::Status Begin(const MoeCall& call) override;
  // Computes here, so that Begin returns at once as it does over a network.
  absl::Status Finish(const MoeCall& call) override;

 private:
  explicit LocalExperts(const kernels::KernelContext& context)
      : context_(context) {}
  void GroupRoutes(const MoeCall& call,
                   const std::vector<kernels::MlpWeights>& experts);
  void CombineOutputs(const MoeCall& call);

  const kernels::KernelContext context_;
  std::map<LayerIndex, std::vector<kernels::MlpWeights>> layers_;
  int64_t bytes_ = 0;

  // Kept between calls.
  std::vector<uint32_t> next_;        // [experts + 1]
  std::vector<uint32_t> row_of_;      // grouped route -> row of call.rows
  std::vector<uint32_t> grouped_of_;  // route row -> grouped route
  std::vector<kernels::MlpGroup> groups_;
  AlignedBuffer y_;
  kernels::MlpScratch scratch_;
  dispatch::CombinePlan combine_plan_;
  std::vector<kernels::Contribution> contributions_;
};

}  // namespace trunkline::trunk
