#pragma once

// Everything that every token needs, packed for the kernels: embedding, mixers,
// norms, routers, shared experts, latent projections, head. Routed experts are
// not here and their pages are never touched.
//
// Immutable after Load; owns all its memory, so the checkpoint's files may go
// away afterwards.

#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "common/aligned_buffer.h"
#include "common/tensor_view.h"
#include "kernels/kernel_context.h"
#include "kernels/mlp.h"
#include "kernels/packed_matrix.h"
#include "model/checkpoint.h"

namespace trunkline::trunk {

struct MambaWeights {
  kernels::PackedMatrix in_proj;   // [inner + conv_dim + heads, hidden]
  kernels::PackedMatrix out_proj;  // [hidden, inner]
  std::vector<float> conv_weight;  // [K, conv_dim], tap-major
  std::vector<float> conv_bias;    // [conv_dim], empty without a bias
  std::vector<float> a;            // [heads], -exp(A_log)
  std::vector<float> d;            // [heads]
  std::vector<float> dt_bias;      // [heads]
  std::vector<float> norm;         // [inner]
};

struct AttentionWeights {
  kernels::PackedMatrix q_proj, k_proj, v_proj, o_proj;
};

struct MoeWeights {
  // [experts, hidden]. F32 also where the file stores BF16: the product is
  // fp32 with an unrounded output (nemotron-h.md, section 4).
  kernels::PackedMatrix gate;
  std::vector<float> correction_bias;  // [experts]
  kernels::MlpWeights shared;          // empty without a shared expert
  kernels::PackedMatrix fc1_latent;    // [latent, hidden], empty without latent
  kernels::PackedMatrix fc2_latent;    // [hidden, latent]
};

struct LayerWeights {
  std::vector<float> norm;  // [hidden]
  std::variant<MambaWeights, AttentionWeights, kernels::MlpWeights, MoeWeights>
      mixer;
};

class TrunkWeights {
 public:
  struct Progress {
    int64_t bytes_done = 0;
    int64_t bytes_total = 0;  // of the trunk tensors in the files
  };

  // NOT_FOUND with the tensor's name when one is missing. Matrices are packed
  // for context.numerics, routers for the portable class. Source pages are
  // given back as soon as everything is packed. on_progress may be empty.
  static absl::StatusOr<TrunkWeights> Load(
      const model::Checkpoint& checkpoint,
      const kernels::KernelContext& context,
      const std::function<void(const Progress&)>& on_progress);

  const TensorView& embedding() const { return embedding_; }
  const std::vector<LayerWeights>& layers() const { return layers_; }
  const std::vector<float>& final_norm() const { return final_norm_; }
  const kernels::PackedMatrix& head() const { return head_; }
  int64_t bytes() const { return bytes_; }  // memory held

 private:
  friend class WeightLoader;
  AlignedBuffer embedding_data_;
  TensorView embedding_;  // [vocab, hidden], as stored; points above
  std::vector<LayerWeights> layers_;
  std::vector<float> final_norm_;
  kernels::PackedMatrix head_;  // the embedding again when tied
  int64_t bytes_ = 0;
};

}  // namespace trunkline::trunk
