#include "model/semantic_text.h"

#include <bit>
#include <cstdint>

#include "absl/strings/str_cat.h"

namespace trunkline::model {
namespace {

// The bits, so that no rounding of a printed number joins two values.
uint32_t FloatBits(float value) { return std::bit_cast<uint32_t>(value); }

std::string LayerText(const LayerSpec& layer) {
  const std::string kind(LayerKindName(layer.kind));
  switch (layer.kind) {
    case LayerKind::kMamba: {
      const MambaShape& m = layer.mamba;
      return absl::StrCat(kind, " ", m.heads, " ", m.head_dim, " ", m.groups,
                          " ", m.state_size, " ", m.conv_kernel, " ",
                          m.conv_bias ? 1 : 0, " ", FloatBits(m.dt_min), " ",
                          FloatBits(m.dt_max), "\n");
    }
    case LayerKind::kAttention: {
      const AttentionShape& a = layer.attention;
      return absl::StrCat(kind, " ", a.heads, " ", a.kv_heads, " ", a.head_dim,
                          " ", a.window, "\n");
    }
    case LayerKind::kMlp:
      return absl::StrCat(kind, " ", layer.mlp.width, "\n");
    case LayerKind::kMoe: {
      const MoeShape& e = layer.moe;
      return absl::StrCat(kind, " ", e.experts, " ", e.top_k, " ", e.width, " ",
                          e.shared_width, " ") +
             absl::StrCat(e.latent, " ", e.n_group, " ", e.topk_group, " ",
                          e.normalize ? 1 : 0, " ", FloatBits(e.scale), "\n");
    }
  }
  return kind;
}

}  // namespace

std::string SemanticConfigText(const ModelConfig& config) {
  std::string text =
      absl::StrCat("vocab ", config.vocab_size, "\nhidden ", config.hidden_size,
                   "\neps ", FloatBits(config.norm_eps), "\n");
  for (const LayerSpec& layer : config.layers)
    absl::StrAppend(&text, LayerText(layer));
  for (const LayerSpec& layer : config.mtp_layers)
    absl::StrAppend(&text, "mtp ", LayerText(layer));
  return text;
}

}  // namespace trunkline::model
