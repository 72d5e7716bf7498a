#include "model/model_config.h"

#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/config_layers.h"
#include "model/config_names.h"
#include "model/json_text.h"
#include "model/token_id_fields.h"

namespace trunkline::model {
namespace {

using nlohmann::json;

// "nemotron_h", "nemotron_h_puzzle", "NemotronH_Nano_VL_V2", ...
bool IsFamilyName(absl::string_view name) {
  return absl::StartsWithIgnoreCase(name, "nemotron_h") ||
         absl::StartsWithIgnoreCase(name, "nemotronh");
}

void ReadIdentity(JsonFields* top, ModelConfig* config) {
  const json* list = top->Find("architectures");
  if (list != nullptr) {
    if (!list->is_array() || list->empty() || !(*list)[0].is_string()) {
      top->FailField("architectures", absl::StrCat("is ", JsonForError(*list),
                                                   ", a list of names is "
                                                   "expected"));
      return;
    }
    config->architecture = (*list)[0].get<std::string>();
  }
  config->model_type = top->String("model_type", "");
  if (config->architecture.empty() && config->model_type.empty()) {
    top->Fail(absl::InvalidArgumentError(absl::StrCat(
        top->file(), ": neither architectures nor model_type is given")));
  }
  for (const std::string& name : {config->architecture, config->model_type}) {
    if (name.empty() || IsFamilyName(name)) continue;
    top->Fail(absl::UnimplementedError(
        absl::StrCat(top->file(), ": the model is of type \"", name,
                     "\"; this program serves NemotronH models")));
  }
}

void RefuseQuantized(JsonFields* fields) {
  for (const char* name : {"quantization_config", "quantization"}) {
    const json* value = fields->Find(name);
    if (value == nullptr) continue;
    std::string algorithm = JsonForError(*value);
    for (const char* key : {"quant_method", "quant_algo"}) {  // algo says more
      if (value->is_object() && value->contains(key) &&
          (*value)[key].is_string())
        algorithm = (*value)[key].get<std::string>();
    }
    fields->Fail(absl::UnimplementedError(absl::StrCat(
        fields->file(), ": ", fields->NameOf(name), " names the quantisation ",
        algorithm, "; F32, F16 and BF16 weights are supported")));
  }
}

// Fields with one supported value: no release of the family has another.
void RefuseUnsupported(JsonFields* text) {
  for (const char* name : {"attention_bias", "mlp_bias", "use_bias",
                           "mamba_proj_bias", "residual_in_fp32"}) {
    if (!text->Bool(name, false)) continue;
    text->Fail(absl::UnimplementedError(absl::StrCat(
        text->file(), ": ", text->NameOf(name), " is true: not supported")));
  }
  struct Only {
    const char* name;
    const char* value;
  };
  for (const Only& only :
       {Only{"mlp_hidden_act", "relu2"}, Only{"mamba_hidden_act", "silu"},
        Only{"mamba_ssm_cache_dtype", "float32"}}) {
    const std::string value = text->String(only.name, only.value);
    if (value == only.value) continue;
    text->Fail(absl::UnimplementedError(
        absl::StrCat(text->file(), ": ", text->NameOf(only.name), " is \"",
                     value, "\": only ", only.value, " is supported")));
  }
}

float ReadEpsilon(JsonFields* text) {
  text->Alias("layer_norm_epsilon", "norm_eps", false);
  // Not an alias of an alias: compare the third spelling with what won so far.
  const double eps =
      text->Number("layer_norm_epsilon", text->Number("rms_norm_eps", 1e-5));
  const double third = text->Number("rms_norm_eps", eps);
  if (text->ok() && third != eps) {
    text->FailField(
        "rms_norm_eps",
        absl::StrCat("is ", third, " but ", text->NameOf("layer_norm_epsilon"),
                     ", another spelling of it, is ", eps));
  }
  if (text->ok() && !(static_cast<float>(eps) > 0 && eps < 1)) {
    text->FailField("layer_norm_epsilon",
                    absl::StrCat("is ", eps,
                                 ", a number between 0 and 1 is "
                                 "expected"));
  }
  return static_cast<float>(eps);
}

// The wrapper of a vision or omni model holds the text configuration inside.
const char* InnerName(const JsonFields& top) {
  if (top.Has("llm_config")) return "llm_config";
  if (top.Has("text_config")) return "text_config";
  return nullptr;
}

int64_t Required(JsonFields* text, const char* name) {
  if (text->ok() && !text->Has(name)) text->FailField(name, "is missing");
  return text->Int(name, 1, 1, kDimensionMax);
}

}  // namespace

absl::string_view LayerKindName(LayerKind kind) {
  switch (kind) {
    case LayerKind::kMamba:
      return "mamba";
    case LayerKind::kAttention:
      return "attention";
    case LayerKind::kMlp:
      return "mlp";
    case LayerKind::kMoe:
      return "moe";
  }
  return "?";
}

char LayerKindLetter(LayerKind kind) {
  switch (kind) {
    case LayerKind::kMamba:
      return 'M';
    case LayerKind::kAttention:
      return '*';
    case LayerKind::kMlp:
      return '-';
    case LayerKind::kMoe:
      return 'E';
  }
  return '?';
}

std::string ModelConfig::LayerPattern() const {
  std::string pattern;
  for (const LayerSpec& layer : layers) pattern += LayerKindLetter(layer.kind);
  return pattern;
}

std::vector<LayerIndex> ModelConfig::MoeLayers() const {
  std::vector<LayerIndex> indices;
  for (const LayerSpec& layer : layers) {
    if (layer.kind == LayerKind::kMoe) indices.push_back(layer.index);
  }
  return indices;
}

absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view json_text,
                                             const std::string& file) {
  TL_ASSIGN_OR_RETURN(const json document,
                      ParseJson(json_text, file, JsonLimits{}));
  JsonFields top(document, "", file);
  TL_RETURN_IF_ERROR(top.status());
  ModelConfig config;
  ReadIdentity(&top, &config);
  const char* inner = InnerName(top);
  config.wrapped = inner != nullptr;
  if (top.Has("llm_config") && top.Has("text_config")) {
    top.FailField("llm_config", "and text_config are both given");
  }
  RefuseQuantized(&top);
  TL_RETURN_IF_ERROR(top.status());
  TL_RETURN_IF_ERROR(CheckKnownNames(
      top, config.wrapped ? ConfigLevel::kWrapper : ConfigLevel::kText));

  JsonFields text(config.wrapped ? *top.Find(inner) : document,
                  config.wrapped ? inner : "", file);
  TL_RETURN_IF_ERROR(text.status());
  if (config.wrapped) {
    RefuseQuantized(&text);
    TL_RETURN_IF_ERROR(text.status());
    TL_RETURN_IF_ERROR(CheckKnownNames(text, ConfigLevel::kText));
  }
  AddConfigAliases(&text);
  RefuseUnsupported(&text);
  config.vocab_size = Required(&text, "vocab_size");
  config.hidden_size = Required(&text, "hidden_size");
  config.norm_eps = ReadEpsilon(&text);
  config.tie_word_embeddings = text.Bool("tie_word_embeddings", false);
  config.max_positions =
      text.Int("max_position_embeddings", 4096, 1, kPositionsMax);
  // A wrapper may keep the special ids beside the text configuration.
  const auto holder = [&](const char* name) {
    return config.wrapped && !text.Has(name) ? &top : &text;
  };
  config.bos_token_id =
      ReadTokenId(holder("bos_token_id"), "bos_token_id", 1, config.vocab_size);
  config.pad_token_id =
      ReadTokenId(holder("pad_token_id"), "pad_token_id", 0, config.vocab_size);
  config.eos_token_ids = ReadTokenIds(holder("eos_token_id"), "eos_token_id",
                                      {2}, config.vocab_size);
  TL_RETURN_IF_ERROR(top.status());
  ReadLayers(&text, &config);
  TL_RETURN_IF_ERROR(text.status());
  return config;
}

}  // namespace trunkline::model
