#pragma once

// A layer's call with random rows and routes, and the buffers it points into.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "common/bfloat16.h"
#include "common/random.h"
#include "model/checkpoint.h"
#include "routing/route_table.h"
#include "trunk_worker/expert_exchange.h"

namespace trunkline::testing {

class RandomMoeCall {
 public:
  // Some tokens have no accepted route, some routes were dropped.
  RandomMoeCall(const model::Checkpoint& checkpoint, LayerIndex layer,
                int64_t tokens, uint64_t seed) {
    const model::ModelConfig& config = checkpoint.config();
    const model::MoeShape& moe = config.layers[layer.value].moe;
    const bool bf16 = checkpoint.activation_dtype() == DType::kBF16;
    call_.layer = layer;
    call_.width = moe.expert_input(config.hidden_size);
    call_.activation =
        bf16 ? kernels::Activation::kBf16 : kernels::Activation::kF32;
    // Strides wider than rows, as in a trunk's buffers.
    call_.row_stride = call_.width + 3;
    call_.combined_stride = call_.width + 5;
    RandomStream random(seed);
    rows_.resize(tokens * call_.row_stride);
    for (float& value : rows_) {
      value = static_cast<float>(random.NextUnit() * 4 - 2);
      if (bf16) value = RoundToBf16(value);
    }
    table_.Clear(tokens, moe.experts, moe.top_k);
    std::vector<uint32_t> experts(moe.experts);
    for (uint32_t t = 0; t < tokens; ++t) {
      std::iota(experts.begin(), experts.end(), 0);
      const bool empty = random.NextBelow(8) == 0;
      for (int64_t slot = 0; slot < moe.top_k; ++slot) {
        std::swap(experts[slot],
                  experts[slot + random.NextBelow(moe.experts - slot)]);
        const bool dropped = empty || random.NextBelow(10) == 0;
        table_.Add(t, static_cast<uint16_t>(slot), ExpertId(experts[slot]),
                   static_cast<float>(random.NextUnit() * 2.5),
                   dropped ? routing::RouteFate::kDropped
                           : routing::RouteFate::kAccepted);
      }
    }
    call_.routes = &table_;
    call_.rows = rows_.data();
    Reset();
  }

  uint64_t accepted() const {
    return static_cast<uint64_t>(std::count(
        table_.fate.begin(), table_.fate.end(), routing::RouteFate::kAccepted));
  }
  // The call points into this object.
  RandomMoeCall(const RandomMoeCall&) = delete;
  RandomMoeCall& operator=(const RandomMoeCall&) = delete;

  const trunk::MoeCall& call() const { return call_; }
  routing::RouteTable& table() { return table_; }
  void SetStep(StepId step) { call_.step = step; }
  // Forgets the last result.
  void Reset() {
    combined_.assign(table_.rows * call_.combined_stride, std::nanf(""));
    call_.combined = combined_.data();
  }

  // The combined rows, bit for bit.
  std::vector<uint32_t> Bits() const {
    std::vector<uint32_t> bits(table_.rows * call_.width);
    for (int64_t r = 0; r < table_.rows; ++r)
      std::memcpy(bits.data() + r * call_.width,
                  combined_.data() + r * call_.combined_stride,
                  call_.width * sizeof(float));
    return bits;
  }

 private:
  routing::RouteTable table_;
  std::vector<float> rows_;
  std::vector<float> combined_;
  trunk::MoeCall call_;
};

// One layer of one step of its own.
inline absl::Status RunOnce(trunk::ExpertExchange& exchange, StepId step,
                            RandomMoeCall& call) {
  call.SetStep(step);
  call.Reset();
  absl::StatusOr<PlacementVersion> version = exchange.BeginStep(step);
  if (!version.ok()) return version.status();
  absl::Status status = exchange.Begin(call.call());
  if (status.ok()) status = exchange.Finish(call.call());
  exchange.EndStep(step);
  return status;
}

}  // namespace trunkline::testing
