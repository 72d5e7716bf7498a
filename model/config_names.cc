#include "model/config_names.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace trunkline::model {
namespace {

// Read by the loader, or checked to hold the one value that is supported.
constexpr absl::string_view kTextNames[] = {
    "architectures", "model_type", "vocab_size", "hidden_size",
    "layers_block_type", "hybrid_override_pattern", "block_configs",
    "blockwise_members", "num_hidden_layers", "tie_word_embeddings",
    "pad_token_id", "bos_token_id", "eos_token_id", "num_attention_heads",
    "num_key_value_heads", "head_dim", "attention_head_dim",
    "max_position_embeddings", "attention_bias", "mlp_bias", "use_bias",
    "mamba_proj_bias", "sliding_window", "intermediate_size", "mlp_hidden_act",
    "ssm_state_size", "mamba_state_dim", "mamba_num_heads", "mamba_head_dim",
    "mamba_hidden_act", "n_groups", "mamba_n_groups", "mamba_num_groups",
    "conv_kernel", "mamba_d_conv", "use_conv_bias", "mamba_conv_bias",
    "time_step_limit", "mamba_dt_limit", "mamba_ssm_cache_dtype",
    "n_routed_experts", "n_shared_experts", "moe_intermediate_size",
    "moe_shared_expert_intermediate_size", "moe_latent_size",
    "num_experts_per_tok", "routed_scaling_factor", "n_group", "topk_group",
    "norm_topk_prob", "num_nextn_predict_layers", "mtp_layers_block_type",
    "mtp_hybrid_override_pattern", "mtp_block_configs", "layer_norm_epsilon",
    "norm_eps", "rms_norm_eps", "residual_in_fp32", "quantization_config",
    "quantization",
    // No effect on the arithmetic of inference: hints, training, bookkeeping.
    // The rope fields are among them, for the family has no rotary embedding.
    "rope_theta", "partial_rotary_factor", "rope_scaling", "rope_parameters",
    "num_logits_to_keep", "attention_dropout", "hidden_dropout", "expand",
    "mamba_expand", "chunk_size", "mamba_chunk_size", "time_step_min",
    "time_step_max", "time_step_floor", "time_step_rank", "mamba_dt_min",
    "mamba_dt_max", "mamba_dt_init_floor", "moe_shared_expert_overlap",
    "rescale_prenorm_residual", "use_mamba_kernels", "initializer_range",
    "num_query_groups"};

// What transformers and training tools write into any configuration.
constexpr absl::string_view kBookkeepingNames[] = {
    "dtype", "torch_dtype", "use_cache", "transformers_version", "auto_map",
    "_name_or_path", "name_or_path", "_commit_hash", "attn_implementation",
    "_attn_implementation", "_attn_implementation_autoset",
    "_attn_implementation_internal", "experts_implementation",
    "_experts_implementation", "return_dict", "output_hidden_states",
    "output_attentions", "torchscript", "use_bfloat16", "pruned_heads",
    "chunk_size_feed_forward", "is_encoder_decoder", "is_decoder",
    "cross_attention_hidden_size", "add_cross_attention", "tie_encoder_decoder",
    "finetuning_task", "problem_type", "id2label", "label2id", "num_labels",
    "task_specific_params", "tokenizer_class", "prefix", "sep_token_id",
    "decoder_start_token_id", "tf_legacy_loss", "architectures", "model_type",
    "pad_token_id", "bos_token_id", "eos_token_id", "tie_word_embeddings",
    "unsloth_fixed", "unsloth_version",
    // Generation settings that old transformers kept in config.json. They are
    // defaults of its own generate() and no part of the model;
    // generation_config.json is where this program reads defaults.
    "max_length", "min_length", "do_sample", "early_stopping", "num_beams",
    "num_beam_groups", "diversity_penalty", "temperature", "top_k", "top_p",
    "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences",
    "output_scores", "return_dict_in_generate", "forced_bos_token_id",
    "forced_eos_token_id", "remove_invalid_values",
    "exponential_decay_length_penalty", "suppress_tokens",
    "begin_suppress_tokens"};

// The image, video and sound side of a wrapper: a text server reads none of it.
constexpr absl::string_view kWrapperNames[] = {"llm_config",
                                               "text_config",
                                               "vision_config",
                                               "sound_config",
                                               "audio_config",
                                               "video_config",
                                               "quantization_config",
                                               "quantization",
                                               "force_image_size",
                                               "downsample_ratio",
                                               "projector_hidden_size",
                                               "vision_hidden_size",
                                               "vit_hidden_size",
                                               "patch_size",
                                               "img_context_token",
                                               "img_context_token_id",
                                               "img_start_token",
                                               "img_start_token_id",
                                               "img_end_token",
                                               "img_end_token_id",
                                               "image_token_id",
                                               "video_token_id",
                                               "image_tag_type",
                                               "norm_mean",
                                               "norm_std",
                                               "ps_version",
                                               "template",
                                               "use_thumbnail",
                                               "max_sequence_length",
                                               "num_image_token",
                                               "dynamic_image_size",
                                               "min_dynamic_patch",
                                               "max_dynamic_patch",
                                               "select_layer",
                                               "use_backbone_lora",
                                               "use_llm_lora",
                                               "max_num_patches",
                                               "min_num_patches",
                                               "separate_video_embedder",
                                               "projector_bias",
                                               "hidden_size",
                                               "vocab_size",
                                               "initializer_range"};

// A wrapper's extra fields of one modality ("video_pruning_rate",
// "sound_context_token_id"): they belong to towers that are dropped whole.
constexpr absl::string_view kWrapperPrefixes[] = {"video_", "sound_", "audio_",
                                                  "vision_"};

constexpr absl::string_view kBlockNames[] = {
    "block_type",
    "sliding_window",
    "n_routed_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "moe_latent_size",
    "moe_shared_expert_intermediate_size",
    "intermediate_size"};

template <size_t n>
bool IsIn(const absl::string_view (&names)[n], absl::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

bool IsKnown(ConfigLevel level, absl::string_view name) {
  switch (level) {
    case ConfigLevel::kText:
      return IsIn(kTextNames, name) || IsIn(kBookkeepingNames, name);
    case ConfigLevel::kWrapper:
      for (absl::string_view prefix : kWrapperPrefixes) {
        if (absl::StartsWith(name, prefix)) return true;
      }
      return IsIn(kWrapperNames, name) || IsIn(kBookkeepingNames, name);
    case ConfigLevel::kBlock:
      return IsIn(kBlockNames, name);
  }
  return false;
}

}  // namespace

bool IsBlockName(absl::string_view name) { return IsIn(kBlockNames, name); }

absl::Status CheckKnownNames(const JsonFields& fields, ConfigLevel level) {
  for (const auto& [name, value] : fields.object().items()) {
    if (value.is_null() || IsKnown(level, name)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        fields.file(), ": unknown field ", fields.NameOf(name), " = ",
        JsonForError(value),
        " (a field that this program does not know may change the model's "
        "arithmetic, so it stops the load)"));
  }
  return absl::OkStatus();
}

}  // namespace trunkline::model
