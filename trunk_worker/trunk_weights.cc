#include "trunk_worker/trunk_weights.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/mamba.h"
#include "kernels/row_ops.h"

namespace trunkline::trunk {

using kernels::PackedMatrix;

// Reads the trunk's tensors by name and packs them, counting what it read and
// what it holds.
class WeightLoader {
 public:
  WeightLoader(const model::Checkpoint& checkpoint,
               const kernels::KernelContext& context,
               const std::function<void(const TrunkWeights::Progress&)>& report)
      : checkpoint_(checkpoint), context_(context), report_(report) {
    for (const model::TensorInfo& tensor : checkpoint.tensors()) {
      if (tensor.role == model::TensorRole::kTrunk)
        progress_.bytes_total += tensor.bytes;
    }
  }

  absl::StatusOr<TrunkWeights> Load() {
    TL_ASSIGN_OR_RETURN(map_, checkpoint_.MapTrunk());
    TrunkWeights weights;
    TL_RETURN_IF_ERROR(LoadEmbedding(&weights));
    for (const model::LayerSpec& spec : checkpoint_.config().layers) {
      TL_ASSIGN_OR_RETURN(LayerWeights layer, LoadLayer(spec));
      weights.layers_.push_back(std::move(layer));
      // Layer by layer, so that the packed form replaces the pages that it was
      // read from instead of standing beside them.
      map_->ReleasePages();
    }
    TL_ASSIGN_OR_RETURN(weights.final_norm_, Vector("norm_f.weight"));
    // With a tied head this is the embedding once more, packed.
    TL_ASSIGN_OR_RETURN(weights.head_, Matrix("lm_head.weight"));
    map_->ReleasePages();
    weights.bytes_ = bytes_held_;
    return weights;
  }

 private:
  // A tied head is read twice but stored once.
  void Count(int64_t bytes) {
    progress_.bytes_done =
        std::min(progress_.bytes_done + bytes, progress_.bytes_total);
    if (report_) report_(progress_);
  }

  absl::StatusOr<PackedMatrix> Matrix(const std::string& name) {
    return Matrix(name, context_.numerics);
  }

  absl::StatusOr<PackedMatrix> Matrix(const std::string& name,
                                      kernels::Numerics numerics) {
    TL_ASSIGN_OR_RETURN(const TensorView view, map_->Find(name));
    TL_ASSIGN_OR_RETURN(PackedMatrix matrix,
                        PackedMatrix::Pack(view, *context_.pool, numerics));
    bytes_held_ += matrix.bytes();
    Count(view.bytes());
    return matrix;
  }

  // All elements as fp32, in the file's order.
  absl::StatusOr<std::vector<float>> Vector(const std::string& name) {
    TL_ASSIGN_OR_RETURN(TensorView view, map_->Find(name));
    std::vector<float> values(view.elements());
    view.shape = {1, view.elements()};
    const int32_t row = 0;
    kernels::EmbedRows(context_, view, &row, 1, values.data(),
                       static_cast<int64_t>(values.size()));
    bytes_held_ += static_cast<int64_t>(values.size() * sizeof(float));
    Count(view.bytes());
    return values;
  }

  // Of the portable class, whatever the others are.
  absl::StatusOr<PackedMatrix> MatrixAsF32(const std::string& name) {
    TL_ASSIGN_OR_RETURN(const TensorView view, map_->Find(name));
    if (view.dtype == DType::kF32)
      return Matrix(name, kernels::Numerics::kPortable);
    TL_ASSIGN_OR_RETURN(const std::vector<float> values, Vector(name));
    bytes_held_ -= static_cast<int64_t>(values.size() * sizeof(float));
    const TensorView wide{view.name, DType::kF32, view.shape,
                          reinterpret_cast<const std::byte*>(values.data())};
    TL_ASSIGN_OR_RETURN(PackedMatrix matrix,
                        PackedMatrix::Pack(wide, *context_.pool));
    bytes_held_ += matrix.bytes();
    return matrix;
  }

  absl::Status LoadEmbedding(TrunkWeights* weights) {
    TL_ASSIGN_OR_RETURN(const TensorView view, map_->Find("embeddings.weight"));
    weights->embedding_data_ = AlignedBuffer(view.bytes());
    std::memcpy(weights->embedding_data_.data(), view.data, view.bytes());
    weights->embedding_ = view;
    weights->embedding_.data = weights->embedding_data_.data();
    bytes_held_ += view.bytes();
    Count(view.bytes());
    return absl::OkStatus();
  }

  absl::StatusOr<LayerWeights> LoadLayer(const model::LayerSpec& spec) {
    const std::string layer = absl::StrCat("layers.", spec.index.value, ".");
    const std::string mixer = layer + "mixer.";
    LayerWeights weights;
    TL_ASSIGN_OR_RETURN(weights.norm, Vector(layer + "norm.weight"));
    switch (spec.kind) {
      case model::LayerKind::kMamba: {
        TL_ASSIGN_OR_RETURN(weights.mixer, LoadMamba(spec.mamba, mixer));
        break;
      }
      case model::LayerKind::kAttention: {
        TL_ASSIGN_OR_RETURN(weights.mixer, LoadAttention(mixer));
        break;
      }
      case model::LayerKind::kMlp: {
        TL_ASSIGN_OR_RETURN(weights.mixer, LoadMlp(mixer));
        break;
      }
      case model::LayerKind::kMoe: {
        TL_ASSIGN_OR_RETURN(weights.mixer, LoadMoe(spec.moe, mixer));
        break;
      }
    }
    return weights;
  }

  absl::StatusOr<MambaWeights> LoadMamba(const model::MambaShape& shape,
                                         const std::string& mixer) {
    MambaWeights w;
    TL_ASSIGN_OR_RETURN(w.in_proj, Matrix(mixer + "in_proj.weight"));
    TL_ASSIGN_OR_RETURN(w.out_proj, Matrix(mixer + "out_proj.weight"));
    TL_ASSIGN_OR_RETURN(const std::vector<float> conv,
                        Vector(mixer + "conv1d.weight"));
    const int64_t channels = shape.conv_dim();
    w.conv_weight.resize(conv.size());
    for (int64_t channel = 0; channel < channels; ++channel) {
      for (int64_t tap = 0; tap < shape.conv_kernel; ++tap) {
        w.conv_weight[tap * channels + channel] =
            conv[channel * shape.conv_kernel + tap];
      }
    }
    if (shape.conv_bias) {
      TL_ASSIGN_OR_RETURN(w.conv_bias, Vector(mixer + "conv1d.bias"));
    }
    TL_ASSIGN_OR_RETURN(const std::vector<float> a_log,
                        Vector(mixer + "A_log"));
    w.a.resize(a_log.size());
    kernels::NegativeExp(a_log.data(), static_cast<int64_t>(a_log.size()),
                         w.a.data());
    TL_ASSIGN_OR_RETURN(w.d, Vector(mixer + "D"));
    TL_ASSIGN_OR_RETURN(w.dt_bias, Vector(mixer + "dt_bias"));
    TL_ASSIGN_OR_RETURN(w.norm, Vector(mixer + "norm.weight"));
    return w;
  }

  absl::StatusOr<AttentionWeights> LoadAttention(const std::string& mixer) {
    AttentionWeights w;
    TL_ASSIGN_OR_RETURN(w.q_proj, Matrix(mixer + "q_proj.weight"));
    TL_ASSIGN_OR_RETURN(w.k_proj, Matrix(mixer + "k_proj.weight"));
    TL_ASSIGN_OR_RETURN(w.v_proj, Matrix(mixer + "v_proj.weight"));
    TL_ASSIGN_OR_RETURN(w.o_proj, Matrix(mixer + "o_proj.weight"));
    return w;
  }

  absl::StatusOr<kernels::MlpWeights> LoadMlp(const std::string& prefix) {
    kernels::MlpWeights w;
    TL_ASSIGN_OR_RETURN(w.up, Matrix(prefix + "up_proj.weight"));
    TL_ASSIGN_OR_RETURN(w.down, Matrix(prefix + "down_proj.weight"));
    return w;
  }

  absl::StatusOr<MoeWeights> LoadMoe(const model::MoeShape& shape,
                                     const std::string& mixer) {
    MoeWeights w;
    TL_ASSIGN_OR_RETURN(w.gate, MatrixAsF32(mixer + "gate.weight"));
    TL_ASSIGN_OR_RETURN(w.correction_bias,
                        Vector(mixer + "gate.e_score_correction_bias"));
    if (shape.shared_width > 0) {
      TL_ASSIGN_OR_RETURN(w.shared, LoadMlp(mixer + "shared_experts."));
    }
    if (shape.latent > 0) {
      TL_ASSIGN_OR_RETURN(w.fc1_latent,
                          Matrix(mixer + "fc1_latent_proj.weight"));
      TL_ASSIGN_OR_RETURN(w.fc2_latent,
                          Matrix(mixer + "fc2_latent_proj.weight"));
    }
    return w;
  }

  const model::Checkpoint& checkpoint_;
  const kernels::KernelContext& context_;
  const std::function<void(const TrunkWeights::Progress&)>& report_;
  std::unique_ptr<model::WeightMap> map_;
  TrunkWeights::Progress progress_;
  int64_t bytes_held_ = 0;
};

absl::StatusOr<TrunkWeights> TrunkWeights::Load(
    const model::Checkpoint& checkpoint, const kernels::KernelContext& context,
    const std::function<void(const Progress&)>& on_progress) {
  return WeightLoader(checkpoint, context, on_progress).Load();
}

}  // namespace trunkline::trunk
