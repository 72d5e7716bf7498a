#include "model/config_json.h"

#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "model/semantic_text.h"

namespace trunkline::model {
namespace {

using nlohmann::ordered_json;

// The shortest decimal that reads back as the same float.
double Shortest(float value) {
  for (int digits = 1; digits < 9; ++digits) {
    const std::string text = absl::StrFormat("%.*g", digits, value);
    if (std::strtof(text.c_str(), nullptr) == value)
      return std::strtod(text.c_str(), nullptr);
  }
  return value;
}

const char* KindSpelling(LayerKind kind, bool new_names) {
  switch (kind) {
    case LayerKind::kMamba:
      return new_names ? "linear_attention" : "mamba";
    case LayerKind::kAttention:
      return new_names ? "full_attention" : "attention";
    case LayerKind::kMlp:
      return "mlp";
    case LayerKind::kMoe:
      return "moe";
  }
  return "?";
}

const LayerSpec* FirstOf(const ModelConfig& config, LayerKind kind) {
  for (const auto* layers : {&config.layers, &config.mtp_layers}) {
    for (const LayerSpec& layer : *layers) {
      if (layer.kind == kind) return &layer;
    }
  }
  return nullptr;
}

void AddMamba(const MambaShape& mamba, ordered_json* text) {
  (*text)["mamba_num_heads"] = mamba.heads;
  (*text)["mamba_head_dim"] = mamba.head_dim;
  (*text)["n_groups"] = mamba.groups;
  (*text)["ssm_state_size"] = mamba.state_size;
  (*text)["conv_kernel"] = mamba.conv_kernel;
  (*text)["use_conv_bias"] = mamba.conv_bias;
  if (mamba.dt_min > 0 || mamba.dt_max < std::numeric_limits<float>::max()) {
    (*text)["time_step_limit"] = {Shortest(mamba.dt_min),
                                  Shortest(mamba.dt_max)};
  }
}

void AddAttention(const AttentionShape& attention, bool blocks,
                  ordered_json* text) {
  (*text)["num_attention_heads"] = attention.heads;
  (*text)["num_key_value_heads"] = attention.kv_heads;
  (*text)["head_dim"] = attention.head_dim;
  if (!blocks && attention.window > 0)
    (*text)["sliding_window"] = attention.window;
}

void AddMoe(const MoeShape& moe, bool blocks, ordered_json* text) {
  (*text)["n_shared_experts"] = 1;
  (*text)["n_group"] = moe.n_group;
  (*text)["topk_group"] = moe.topk_group;
  (*text)["norm_topk_prob"] = moe.normalize;
  (*text)["routed_scaling_factor"] = Shortest(moe.scale);
  if (blocks) return;
  (*text)["n_routed_experts"] = moe.experts;
  (*text)["num_experts_per_tok"] = moe.top_k;
  (*text)["moe_intermediate_size"] = moe.width;
  (*text)["moe_shared_expert_intermediate_size"] = moe.shared_width;
  if (moe.latent > 0) (*text)["moe_latent_size"] = moe.latent;
}

ordered_json Blocks(const std::vector<LayerSpec>& layers) {
  ordered_json blocks = ordered_json::array();
  for (const LayerSpec& layer : layers) {
    ordered_json block;
    block["block_type"] = KindSpelling(layer.kind, false);
    if (layer.kind == LayerKind::kAttention && layer.attention.window > 0) {
      block["sliding_window"] = layer.attention.window;
    } else if (layer.kind == LayerKind::kMlp) {
      block["intermediate_size"] = layer.mlp.width;
    } else if (layer.kind == LayerKind::kMoe) {
      block["n_routed_experts"] = layer.moe.experts;
      block["num_experts_per_tok"] = layer.moe.top_k;
      block["moe_intermediate_size"] = layer.moe.width;
      block["moe_shared_expert_intermediate_size"] = layer.moe.shared_width;
      if (layer.moe.latent > 0) block["moe_latent_size"] = layer.moe.latent;
    }
    blocks.push_back(std::move(block));
  }
  return blocks;
}

void AddTable(const std::vector<LayerSpec>& layers, const std::string& prefix,
              LayerTableSpelling spelling, ordered_json* text) {
  ordered_json names = ordered_json::array();
  std::string pattern;
  for (const LayerSpec& layer : layers) {
    pattern += LayerKindLetter(layer.kind);
    names.push_back(
        KindSpelling(layer.kind, spelling == LayerTableSpelling::kNamesNew));
  }
  switch (spelling) {
    case LayerTableSpelling::kPattern:
      (*text)[prefix + "hybrid_override_pattern"] = pattern;
      return;
    case LayerTableSpelling::kNames:
    case LayerTableSpelling::kNamesNew:
      (*text)[prefix.empty() ? "layers_block_type" : "mtp_layers_block_type"] =
          names;
      return;
    case LayerTableSpelling::kBlocks:
      (*text)[prefix + "block_configs"] = Blocks(layers);
      return;
  }
}

// With one width for all, or a list when the pattern's '-' layers differ.
void AddDenseWidths(const ModelConfig& config, ordered_json* text) {
  ordered_json widths = ordered_json::array();
  for (const LayerSpec& layer : config.layers) {
    if (layer.kind == LayerKind::kMlp) widths.push_back(layer.mlp.width);
  }
  bool equal = true;
  for (const auto& width : widths) equal = equal && width == widths[0];
  if (!widths.empty())
    (*text)["intermediate_size"] = equal ? widths[0] : widths;
}

const char* TorchName(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "float32";
    case DType::kF16:
      return "float16";
    case DType::kBF16:
      return "bfloat16";
  }
  return "?";
}

ordered_json TextConfig(const ModelConfig& config, DType dtype,
                        LayerTableSpelling spelling) {
  const bool blocks = spelling == LayerTableSpelling::kBlocks;
  ordered_json text;
  text["architectures"] = {blocks ? "NemotronHPuzzleForCausalLM"
                                  : "NemotronHForCausalLM"};
  text["model_type"] = blocks ? "nemotron_h_puzzle" : "nemotron_h";
  text["torch_dtype"] = TorchName(dtype);
  text["vocab_size"] = config.vocab_size;
  text["hidden_size"] = config.hidden_size;
  text["layer_norm_epsilon"] = Shortest(config.norm_eps);
  text["tie_word_embeddings"] = config.tie_word_embeddings;
  text["max_position_embeddings"] = config.max_positions;
  if (config.bos_token_id >= 0) text["bos_token_id"] = config.bos_token_id;
  if (config.pad_token_id >= 0) text["pad_token_id"] = config.pad_token_id;
  text["eos_token_id"] = config.eos_token_ids;
  AddTable(config.layers, "", spelling, &text);
  if (!blocks) text["num_hidden_layers"] = config.layers.size();
  if (!config.mtp_layers.empty()) {
    text["num_nextn_predict_layers"] = 1;
    AddTable(config.mtp_layers, "mtp_", spelling, &text);
  }
  if (const LayerSpec* layer = FirstOf(config, LayerKind::kMamba))
    AddMamba(layer->mamba, &text);
  if (const LayerSpec* layer = FirstOf(config, LayerKind::kAttention))
    AddAttention(layer->attention, blocks, &text);
  if (const LayerSpec* layer = FirstOf(config, LayerKind::kMoe))
    AddMoe(layer->moe, blocks, &text);
  if (!blocks) AddDenseWidths(config, &text);
  return text;
}

}  // namespace

absl::StatusOr<std::string> ConfigJson(const ModelConfig& config, DType dtype,
                                       LayerTableSpelling spelling) {
  ordered_json document = TextConfig(config, dtype, spelling);
  if (config.wrapped) {
    ordered_json wrapper;
    wrapper["architectures"] = {"NemotronH_Nano_Omni_Reasoning_V3"};
    wrapper["model_type"] = "NemotronH_Nano_Omni_Reasoning_V3";
    wrapper["torch_dtype"] = TorchName(dtype);
    wrapper["vision_config"] = ordered_json::object();
    wrapper["img_context_token_id"] = 18;
    wrapper["llm_config"] = std::move(document);
    document = std::move(wrapper);
  }
  const std::string text = document.dump(2) + "\n";
  // What this spelling can not say is found by reading it back.
  TL_ASSIGN_OR_RETURN(const ModelConfig read,
                      ParseModelConfig(text, "config.json"));
  if (SemanticConfigText(read) != SemanticConfigText(config)) {
    return absl::InvalidArgumentError(
        "this layer table can not be written in the asked spelling: layers of "
        "one kind differ in a size that it states once");
  }
  return text;
}

}  // namespace trunkline::model
