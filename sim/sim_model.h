#pragma once

// The model of a simulated cluster: a few moe layers whose experts compute with
// small integers, so that every float on the way is exact and the reference is
// plain integer arithmetic that shares no line with the kernels.
//
// A row is a function of the token prefix alone, as in the real model; so a
// text has one right answer whatever the batch, the chunking, the placement and
// the failures.

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "common/ids.h"
#include "common/thread_pool.h"
#include "expert_worker/expert_key.h"
#include "expert_worker/expert_worker.h"
#include "expert_worker/peer_loader.h"
#include "kernels/mlp.h"
#include "placement/placement_map.h"
#include "routing/route_table.h"

namespace trunkline::sim {

inline constexpr int kWidth = 8;
inline constexpr int kInner = 4;
inline constexpr int32_t kVocabulary = 97;
inline constexpr int64_t kExpertBytes = 100;

using Row = std::array<int32_t, kWidth>;

class SimModel {
 public:
  SimModel(uint64_t seed, int layers, int experts, int top_k);

  const std::vector<placement::MoeLayerShape>& shapes() const {
    return shapes_;
  }
  std::vector<expert::MoeLayer> worker_layers() const;
  int experts() const { return experts_; }
  int top_k() const { return top_k_; }

  // The row that a token prefix enters the first layer with.
  static Row Embed(std::span<const int32_t> prefix);
  // The routes of one row: distinct experts with gates, ascending by slot.
  struct Choice {
    uint32_t expert = 0;
    int32_t gate = 0;
  };
  std::vector<Choice> Route(LayerIndex layer, const Row& row) const;
  // Ungated output of one expert.
  Row Expert(expert::ExpertKey key, const Row& row) const;
  // What combine must give.
  Row Combined(LayerIndex layer, const Row& row) const;
  // The row that enters the next layer.
  static Row Residual(const Row& row, const Row& combined);
  static int32_t Token(const Row& row, std::span<const int32_t> prefix);

  // The whole text, alone in one process.
  std::vector<int32_t> Generate(std::vector<int32_t> prompt, int count) const;

  // The same expert for the kernels. Pointers are equal for equal keys.
  std::shared_ptr<const kernels::MlpWeights> Weights(expert::ExpertKey key);
  // The same as they travel between workers: what to ask for, with the digest
  // that it must have, and the weights made of what came.
  expert::ExpertRequest Request(expert::ExpertKey key) const;
  std::shared_ptr<const kernels::MlpWeights> Weights(
      const expert::FetchedExpert& fetched);

 private:
  int32_t Up(expert::ExpertKey key, int inner, int in) const;
  int32_t Down(expert::ExpertKey key, int out, int inner) const;
  struct Parts {
    std::vector<float> up, down;  // [kInner, kWidth], [kWidth, kInner]
  };
  Parts PartsOf(expert::ExpertKey key) const;
  std::shared_ptr<const kernels::MlpWeights> PackParts(const Parts& parts);

  const uint64_t seed_;
  const int experts_, top_k_;
  std::vector<placement::MoeLayerShape> shapes_;
  ThreadPool pool_{ThreadPool::Options{}};
  std::map<expert::ExpertKey, std::shared_ptr<const kernels::MlpWeights>>
      weights_;
};

}  // namespace trunkline::sim
