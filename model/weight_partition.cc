#include "model/weight_partition.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace trunkline::model {
namespace {

class Builder {
 public:
  explicit Builder(const ModelConfig& config) : config_(config) {}

  std::vector<TensorSpec> Run() {
    const int64_t hidden = config_.hidden_size;
    const int64_t vocab = config_.vocab_size;
    Add(std::string(kEmbeddingName), {vocab, hidden}, TensorPart::kEmbedding,
        TensorTyping::kProjection);
    for (const LayerSpec& layer : config_.layers)
      AddLayer(absl::StrCat("layers.", layer.index.value, "."), layer);
    layer_ = LayerIndex();
    Add("norm_f.weight", {hidden}, TensorPart::kNorm, TensorTyping::kSmall);
    Add(std::string(kHeadName), {vocab, hidden}, TensorPart::kHead,
        TensorTyping::kProjection);
    AddPredictionHead();
    return std::move(specs_);
  }

 private:
  void Add(std::string name, std::vector<int64_t> shape, TensorPart part,
           TensorTyping typing) {
    TensorSpec spec;
    spec.name = std::move(name);
    spec.shape = std::move(shape);
    spec.role = role_;
    spec.part = part;
    spec.typing = typing;
    spec.layer = layer_;
    specs_.push_back(std::move(spec));
  }

  // A projection of the current part, "PREFIX.NAME.weight".
  void Weight(const std::string& name, int64_t rows, int64_t columns,
              TensorPart part) {
    Add(absl::StrCat(name, ".weight"), {rows, columns}, part,
        TensorTyping::kProjection);
  }

  void AddLayer(const std::string& prefix, const LayerSpec& layer) {
    layer_ = layer.index;
    Add(absl::StrCat(prefix, "norm.weight"), {config_.hidden_size},
        TensorPart::kNorm, TensorTyping::kSmall);
    const std::string mixer = absl::StrCat(prefix, "mixer.");
    switch (layer.kind) {
      case LayerKind::kMamba:
        return AddMamba(mixer, layer.mamba);
      case LayerKind::kAttention:
        return AddAttention(mixer, layer.attention);
      case LayerKind::kMlp:
        Weight(mixer + "up_proj", layer.mlp.width, config_.hidden_size,
               TensorPart::kDense);
        Weight(mixer + "down_proj", config_.hidden_size, layer.mlp.width,
               TensorPart::kDense);
        return;
      case LayerKind::kMoe:
        return AddMoe(mixer, layer.moe);
    }
  }

  void AddMamba(const std::string& mixer, const MambaShape& mamba) {
    constexpr TensorPart kPart = TensorPart::kMamba;
    constexpr TensorTyping kSmall = TensorTyping::kSmall;
    Weight(mixer + "in_proj", mamba.in_proj_rows(), config_.hidden_size, kPart);
    Add(mixer + "conv1d.weight", {mamba.conv_dim(), 1, mamba.conv_kernel},
        kPart, kSmall);
    if (mamba.conv_bias)
      Add(mixer + "conv1d.bias", {mamba.conv_dim()}, kPart, kSmall);
    Add(mixer + "dt_bias", {mamba.heads}, kPart, kSmall);
    Add(mixer + "A_log", {mamba.heads}, kPart, kSmall);
    Add(mixer + "D", {mamba.heads}, kPart, kSmall);
    Add(mixer + "norm.weight", {mamba.inner()}, TensorPart::kNorm, kSmall);
    Weight(mixer + "out_proj", config_.hidden_size, mamba.inner(), kPart);
  }

  void AddAttention(const std::string& mixer, const AttentionShape& attention) {
    const int64_t hidden = config_.hidden_size;
    const int64_t query = attention.heads * attention.head_dim;
    const int64_t key = attention.kv_heads * attention.head_dim;
    constexpr TensorPart kPart = TensorPart::kAttention;
    Weight(mixer + "q_proj", query, hidden, kPart);
    Weight(mixer + "k_proj", key, hidden, kPart);
    Weight(mixer + "v_proj", key, hidden, kPart);
    Weight(mixer + "o_proj", hidden, query, kPart);
  }

  void AddMoe(const std::string& mixer, const MoeShape& moe) {
    const int64_t hidden = config_.hidden_size;
    Add(mixer + "gate.weight", {moe.experts, hidden}, TensorPart::kRouter,
        TensorTyping::kSmall);
    Add(mixer + "gate.e_score_correction_bias", {moe.experts},
        TensorPart::kRouter, TensorTyping::kSmall);
    const int64_t input = moe.expert_input(hidden);
    const TensorRole outside = role_;
    if (role_ == TensorRole::kTrunk) role_ = TensorRole::kRoutedExpert;
    for (int64_t e = 0; e < moe.experts; ++e) {
      const std::string expert = absl::StrCat(mixer, "experts.", e, ".");
      const ExpertId id(static_cast<uint32_t>(e));
      Weight(expert + "up_proj", moe.width, input, TensorPart::kRoutedExperts);
      specs_.back().expert = id;
      Weight(expert + "down_proj", input, moe.width,
             TensorPart::kRoutedExperts);
      specs_.back().expert = id;
    }
    role_ = outside;
    if (moe.shared_width > 0) {
      const std::string shared = absl::StrCat(mixer, "shared_experts.");
      Weight(shared + "up_proj", moe.shared_width, hidden,
             TensorPart::kSharedExpert);
      Weight(shared + "down_proj", hidden, moe.shared_width,
             TensorPart::kSharedExpert);
    }
    if (moe.latent > 0) {
      Weight(mixer + "fc1_latent_proj", moe.latent, hidden,
             TensorPart::kLatent);
      Weight(mixer + "fc2_latent_proj", hidden, moe.latent,
             TensorPart::kLatent);
    }
  }

  // The first layer carries the joining projection and its norms, the last the
  // final norm; embedding and head are the trunk's.
  void AddPredictionHead() {
    if (config_.mtp_layers.empty()) return;
    role_ = TensorRole::kMtp;
    const int64_t hidden = config_.hidden_size;
    for (const LayerSpec& layer : config_.mtp_layers) {
      const std::string prefix =
          absl::StrCat("mtp.layers.", layer.index.value, ".");
      layer_ = layer.index;
      if (&layer == &config_.mtp_layers.front()) {
        for (const char* norm : {"enorm.weight", "hnorm.weight"})
          Add(prefix + norm, {hidden}, TensorPart::kNorm, TensorTyping::kSmall);
        Weight(prefix + "eh_proj", hidden, 2 * hidden, TensorPart::kDense);
      }
      AddLayer(prefix, layer);
      if (&layer == &config_.mtp_layers.back()) {
        Add(prefix + "final_layernorm.weight", {hidden}, TensorPart::kNorm,
            TensorTyping::kSmall);
      }
    }
  }

  const ModelConfig& config_;
  TensorRole role_ = TensorRole::kTrunk;
  LayerIndex layer_;
  std::vector<TensorSpec> specs_;
};

}  // namespace

absl::string_view TensorRoleName(TensorRole role) {
  switch (role) {
    case TensorRole::kTrunk:
      return "trunk";
    case TensorRole::kRoutedExpert:
      return "expert";
    case TensorRole::kMtp:
      return "mtp";
  }
  return "?";
}

absl::string_view TensorPartName(TensorPart part) {
  switch (part) {
    case TensorPart::kEmbedding:
      return "embedding";
    case TensorPart::kMamba:
      return "mamba";
    case TensorPart::kAttention:
      return "attention";
    case TensorPart::kRouter:
      return "router";
    case TensorPart::kRoutedExperts:
      return "routed experts";
    case TensorPart::kSharedExpert:
      return "shared expert";
    case TensorPart::kLatent:
      return "latent";
    case TensorPart::kDense:
      return "dense";
    case TensorPart::kNorm:
      return "norms";
    case TensorPart::kHead:
      return "head";
  }
  return "?";
}

std::vector<TensorSpec> ExpectedTensors(const ModelConfig& config) {
  return Builder(config).Run();
}

}  // namespace trunkline::model
