#pragma once

// The architecture of one checkpoint: config.json resolved into a layer table
// (nemotron-h.md, section 1). Values only; knows no tensor and no file. Nothing
// is uniform across layers: read the layer, not a global.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/ids.h"

namespace trunkline::model {

enum class LayerKind : uint8_t { kMamba, kAttention, kMlp, kMoe };
absl::string_view LayerKindName(
    LayerKind kind);                   // "mamba", "attention", "mlp", "moe"
char LayerKindLetter(LayerKind kind);  // 'M', '*', '-', 'E'

struct MambaShape {
  int64_t heads = 0, head_dim = 0, groups = 0, state_size = 0, conv_kernel = 0;
  bool conv_bias = true;
  float dt_min =
      0.0f;  // time_step_limit when the config has a finite pair; else 0 and
  float dt_max = 3.4028235e38f;  // the largest float
  int64_t inner() const { return heads * head_dim; }
  int64_t conv_dim() const { return inner() + 2 * groups * state_size; }
  int64_t in_proj_rows() const { return inner() + conv_dim() + heads; }
};

struct AttentionShape {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t window = 0;  // 0: none
};

struct MlpShape {
  int64_t width = 0;
};

struct MoeShape {
  int64_t experts = 0, top_k = 0, width = 0;
  int64_t shared_width =
      0;  // 0: no shared expert; n_shared_experts times the configured width
  int64_t latent = 0;  // 0: none; else the experts' input width
  int64_t n_group = 1, topk_group = 1;
  bool normalize = true;
  float scale = 1.0f;
  int64_t expert_input(int64_t hidden) const {
    return latent > 0 ? latent : hidden;
  }
};

struct LayerSpec {
  LayerIndex index;
  LayerKind kind = LayerKind::kMamba;
  // Only the member that `kind` names is meaningful.
  MambaShape mamba;
  AttentionShape attention;
  MlpShape mlp;
  MoeShape moe;
};

struct ModelConfig {
  std::string architecture;  // "NemotronHForCausalLM", ...
  std::string model_type;
  bool wrapped = false;  // text config came from llm_config / text_config:
                         // tensors carry "language_model."
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  float norm_eps = 1e-5f;
  bool tie_word_embeddings = false;
  int64_t max_positions = 0;
  int32_t bos_token_id = -1, pad_token_id = -1;
  std::vector<int32_t>
      eos_token_ids;  // config.json's; generation_config.json's replace them
                      // when present
  std::vector<LayerSpec> layers;
  std::vector<LayerSpec> mtp_layers;  // empty unless num_nextn_predict_layers >
                                      // 0; the trunk does not run them yet

  std::string LayerPattern() const;  // "MEM*EMEM"
  std::vector<LayerIndex> MoeLayers() const;
};

// json_text: the whole config.json; `file` names it in errors. Takes the
// literals Infinity, -Infinity and NaN as Python writes them. INVALID_ARGUMENT
// names the field, its value and the file: unknown field, unknown layer letter
// or type, contradictory counts, dimensions that do not divide, wrong JSON
// type.
absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view json_text,
                                             const std::string& file);

// generation_config.json, optional beside a checkpoint.
struct GenerationDefaults {
  std::vector<int32_t> eos_token_ids;
  bool do_sample = false;
  float temperature = 1.0f;
  float top_p = 1.0f;
  int32_t top_k = 0;  // 0: off
};
absl::StatusOr<GenerationDefaults> ParseGenerationConfig(
    absl::string_view json_text, const std::string& file);

}  // namespace trunkline::model
