#include "model/checkpoint_digest.h"

#include <xxhash.h>

#include <bit>
#include <cstdint>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace trunkline::model {
namespace {

constexpr int64_t kSampleBytes = 4096;

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

class Hasher {
 public:
  Hasher() : state_(XXH3_createState()) {
    TL_CHECK(state_ != nullptr);
    XXH3_128bits_reset(state_);
  }
  ~Hasher() { XXH3_freeState(state_); }
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;

  void Add(absl::string_view bytes) {
    XXH3_128bits_update(state_, bytes.data(), bytes.size());
  }
  std::string Hex() const {
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state_));
    return absl::BytesToHexString(
        absl::string_view(reinterpret_cast<const char*>(canonical.digest),
                          sizeof(canonical.digest)));
  }

 private:
  XXH3_state_t* state_;
};

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

absl::StatusOr<std::string> ComputeDigest(
    const ModelConfig& config, const std::vector<TensorInfo>& tensors,
    const std::vector<std::shared_ptr<const SafetensorsFile>>& files) {
  Hasher hasher;
  hasher.Add(SemanticConfigText(config));
  std::string sample(2 * kSampleBytes, '\0');
  for (const TensorInfo& tensor : tensors) {
    hasher.Add(absl::StrCat(tensor.name, " ", DTypeName(tensor.dtype), " ",
                            ShapeString(tensor.shape), "\n"));
    const SafetensorsFile& file = *files[tensor.file];
    if (tensor.bytes <= 2 * kSampleBytes) {
      TL_RETURN_IF_ERROR(file.Read(tensor.offset, tensor.bytes, sample.data()));
      hasher.Add(absl::string_view(sample).substr(0, tensor.bytes));
      continue;
    }
    TL_RETURN_IF_ERROR(file.Read(tensor.offset, kSampleBytes, sample.data()));
    TL_RETURN_IF_ERROR(file.Read(tensor.offset + tensor.bytes - kSampleBytes,
                                 kSampleBytes, sample.data() + kSampleBytes));
    hasher.Add(sample);
  }
  return hasher.Hex();
}

}  // namespace trunkline::model
