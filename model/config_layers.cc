#include "model/config_layers.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "model/config_names.h"
#include "model/layer_check.h"
#include "model/layer_globals.h"

namespace trunkline::model {
namespace {

using nlohmann::json;

// Where one layer table is written, in the order in which the spellings win.
struct TableNames {
  const char* blocks;
  const char* kinds;
  const char* pattern;
};
constexpr TableNames kTrunkTable = {"block_configs", "layers_block_type",
                                    "hybrid_override_pattern"};
constexpr TableNames kMtpTable = {"mtp_block_configs", "mtp_layers_block_type",
                                  "mtp_hybrid_override_pattern"};

bool KindOfName(const std::string& name, LayerKind* kind) {
  if (name == "mamba" || name == "linear_attention") {
    *kind = LayerKind::kMamba;
  } else if (name == "attention" || name == "full_attention") {
    *kind = LayerKind::kAttention;
  } else if (name == "mlp") {
    *kind = LayerKind::kMlp;
  } else if (name == "moe") {
    *kind = LayerKind::kMoe;
  } else {
    return false;
  }
  return true;
}

std::vector<LayerKind> KindsOfList(JsonFields* text, const char* name) {
  std::vector<LayerKind> kinds;
  const json& list = *text->Find(name);
  if (!list.is_array()) {
    text->FailField(name, absl::StrCat("is ", JsonForError(list),
                                       ", a list of layer types is expected"));
    return kinds;
  }
  for (const json& entry : list) {
    LayerKind kind;
    if (!entry.is_string() || !KindOfName(entry.get<std::string>(), &kind)) {
      text->FailField(
          absl::StrCat(name, "[", kinds.size(), "]"),
          absl::StrCat("is ", JsonForError(entry),
                       ", expected mamba (or linear_attention), attention (or "
                       "full_attention), moe or mlp"));
      return kinds;
    }
    kinds.push_back(kind);
  }
  return kinds;
}

std::vector<LayerKind> KindsOfPattern(JsonFields* text, const char* name) {
  std::vector<LayerKind> kinds;
  for (const char letter : text->String(name, "")) {
    switch (letter) {
      case 'M':
        kinds.push_back(LayerKind::kMamba);
        break;
      case '*':
        kinds.push_back(LayerKind::kAttention);
        break;
      case '-':
        kinds.push_back(LayerKind::kMlp);
        break;
      case 'E':
        kinds.push_back(LayerKind::kMoe);
        break;
      default:
        text->FailField(name,
                        absl::StrCat("has the unknown layer letter ",
                                     JsonForError(json(std::string(1, letter))),
                                     " at position ", kinds.size(),
                                     " (known: M, *, E, -)"));
        return kinds;
    }
  }
  return kinds;
}

// The same table may be written twice; then both must say the same.
void CheckSameKinds(JsonFields* text, const char* name,
                    const std::vector<LayerKind>& kinds, const char* other,
                    const std::vector<LayerKind>& other_kinds) {
  if (!text->ok()) return;
  if (kinds.size() != other_kinds.size()) {
    text->FailField(name, absl::StrCat("lists ", kinds.size(), " layers but ",
                                       other, " lists ", other_kinds.size()));
    return;
  }
  for (size_t i = 0; i < kinds.size(); ++i) {
    if (kinds[i] == other_kinds[i]) continue;
    text->FailField(
        name,
        absl::StrCat("says layer ", i, " is ", LayerKindName(kinds[i]), " but ",
                     other, " says ", LayerKindName(other_kinds[i])));
    return;
  }
}

// One layer's own object inside block_configs.
LayerKind KindOfBlock(JsonFields* block) {
  LayerKind kind = LayerKind::kMamba;
  block->Fail(CheckKnownNames(*block, ConfigLevel::kBlock));
  const std::string name = block->String("block_type", "");
  if (!KindOfName(name, &kind)) {
    block->FailField("block_type",
                     absl::StrCat("is \"", name,
                                  "\", expected mamba, attention, moe or mlp"));
  }
  return kind;
}

bool BelongsTo(LayerKind kind, const std::string& name) {
  if (name == "block_type") return true;
  switch (kind) {
    case LayerKind::kMamba:
      return false;
    case LayerKind::kAttention:
      return name == "sliding_window";
    case LayerKind::kMlp:
      return name == "intermediate_size";
    case LayerKind::kMoe:
      return name != "sliding_window" && name != "intermediate_size";
  }
  return false;
}

void ApplyBlock(const LayerGlobals& globals, JsonFields* text,
                JsonFields* block, LayerSpec* layer) {
  for (const auto& [name, value] : block->object().items()) {
    if (!value.is_null() && !BelongsTo(layer->kind, name)) {
      block->FailField(name, absl::StrCat("does not belong to a block of type ",
                                          LayerKindName(layer->kind)));
    }
  }
  // These have no meaningful default: without a global, the block must say.
  const auto required = [&](const char* name) {
    if (globals.blockwise.count(name) > 0 && !text->Has(name) &&
        !block->Has(name)) {
      block->FailField(name,
                       "is missing: blockwise_members says that it is given "
                       "per block");
    }
  };
  switch (layer->kind) {
    case LayerKind::kMamba:
      break;
    case LayerKind::kAttention:
      layer->attention.window = block->Int(
          "sliding_window", layer->attention.window, 1, kPositionsMax);
      break;
    case LayerKind::kMlp:
      required("intermediate_size");
      layer->mlp.width =
          block->Int("intermediate_size", layer->mlp.width, 1, kDimensionMax);
      break;
    case LayerKind::kMoe: {
      MoeShape& moe = layer->moe;
      required("n_routed_experts");
      required("num_experts_per_tok");
      required("moe_intermediate_size");
      moe.experts = block->Int("n_routed_experts", moe.experts, 1, kExpertsMax);
      moe.top_k = block->Int("num_experts_per_tok", moe.top_k, 1, kExpertsMax);
      moe.width =
          block->Int("moe_intermediate_size", moe.width, 1, kDimensionMax);
      moe.latent = block->Int("moe_latent_size", moe.latent, 1, kDimensionMax);
      if (block->Has("moe_shared_expert_intermediate_size")) {
        moe.shared_width = block->Int("moe_shared_expert_intermediate_size", 0,
                                      0, kDimensionMax) *
                           globals.shared_experts;
      }
      break;
    }
  }
}

LayerSpec LayerFromGlobals(const LayerGlobals& globals, LayerKind kind,
                           size_t index) {
  LayerSpec layer;
  layer.index = LayerIndex(static_cast<uint32_t>(index));
  layer.kind = kind;
  if (kind == LayerKind::kMamba) layer.mamba = globals.mamba;
  if (kind == LayerKind::kAttention) layer.attention = globals.attention;
  if (kind == LayerKind::kMoe) layer.moe = globals.moe;
  return layer;
}

std::vector<LayerSpec> LayersOfBlocks(JsonFields* text,
                                      const LayerGlobals& globals,
                                      const char* name) {
  std::vector<LayerSpec> layers;
  const json& list = *text->Find(name);
  if (!list.is_array() || list.size() > kLayersMax) {
    text->FailField(
        name, absl::StrCat("is ", JsonForError(list), ", a list of at most ",
                           kLayersMax, " blocks is expected"));
    return layers;
  }
  for (const json& entry : list) {
    JsonFields block(entry,
                     absl::StrCat(text->NameOf(name), "[", layers.size(), "]"),
                     text->file());
    if (block.ok()) {
      const LayerKind kind = KindOfBlock(&block);
      layers.push_back(LayerFromGlobals(globals, kind, layers.size()));
      if (kind == LayerKind::kMlp && globals.dense_widths.size() == 1)
        layers.back().mlp.width = globals.dense_widths[0];
      if (block.ok()) ApplyBlock(globals, text, &block, &layers.back());
    }
    text->Fail(block.status());
    if (!text->ok()) break;
  }
  return layers;
}

std::vector<LayerKind> KindsOf(const std::vector<LayerSpec>& layers) {
  std::vector<LayerKind> kinds;
  for (const LayerSpec& layer : layers) kinds.push_back(layer.kind);
  return kinds;
}

void SetDenseWidths(JsonFields* text, const LayerGlobals& globals,
                    std::vector<LayerSpec>* layers) {
  size_t dense = 0;
  for (const LayerSpec& layer : *layers) dense += layer.kind == LayerKind::kMlp;
  const std::vector<int64_t>& widths = globals.dense_widths;
  if (dense > 0 && widths.size() > 1 && widths.size() != dense) {
    text->FailField("intermediate_size",
                    absl::StrCat("lists ", widths.size(), " widths for ", dense,
                                 " mlp layers"));
    return;
  }
  size_t i = 0;
  for (LayerSpec& layer : *layers) {
    if (layer.kind != LayerKind::kMlp) continue;
    layer.mlp.width = widths[widths.size() > 1 ? i++ : 0];
  }
}

std::vector<LayerSpec> ReadTable(JsonFields* text, const LayerGlobals& globals,
                                 const TableNames& names,
                                 const char* pattern_default) {
  std::vector<LayerSpec> layers;
  std::vector<LayerKind> kinds;
  if (text->Has(names.blocks)) {
    layers = LayersOfBlocks(text, globals, names.blocks);
    // Exporters write the kinds a second time for the reader's sake.
    if (text->ok() && text->Has(names.kinds)) {
      CheckSameKinds(text, names.blocks, KindsOf(layers), names.kinds,
                     KindsOfList(text, names.kinds));
    }
    if (text->ok() && text->Has(names.pattern)) {
      CheckSameKinds(text, names.blocks, KindsOf(layers), names.pattern,
                     KindsOfPattern(text, names.pattern));
    }
    return layers;
  }
  if (text->Has(names.kinds)) {
    kinds = KindsOfList(text, names.kinds);
  } else if (text->Has(names.pattern)) {
    kinds = KindsOfPattern(text, names.pattern);
  } else {
    for (const char* c = pattern_default; *c != '\0'; ++c)
      kinds.push_back(*c == '*' ? LayerKind::kAttention : LayerKind::kMoe);
  }
  if (kinds.size() > kLayersMax) {
    text->FailField(names.pattern,
                    absl::StrCat("lists ", kinds.size(), " layers, at most ",
                                 kLayersMax, " are supported"));
    return layers;
  }
  for (const LayerKind kind : kinds)
    layers.push_back(LayerFromGlobals(globals, kind, layers.size()));
  SetDenseWidths(text, globals, &layers);
  return layers;
}

void CheckLayers(JsonFields* text, const std::vector<LayerSpec>& layers,
                 const char* prefix) {
  int64_t experts = 0;
  for (const LayerSpec& layer : layers) {
    if (!text->ok()) return;
    CheckLayer(text, absl::StrCat(prefix, "layer ", layer.index.value), layer);
    if (layer.kind == LayerKind::kMoe) experts += layer.moe.experts;
  }
  if (experts > kExpertsOfAllLayersMax) {
    text->FailField("n_routed_experts",
                    absl::StrCat("sums up to ", experts,
                                 " experts over all layers, at most ",
                                 kExpertsOfAllLayersMax, " are supported"));
  }
}

}  // namespace

void AddConfigAliases(JsonFields* text) {
  // Legacy names: where a config holds both, transformers lets these win.
  text->Alias("n_groups", "mamba_n_groups", true);
  text->Alias("conv_kernel", "mamba_d_conv", true);
  text->Alias("use_conv_bias", "mamba_conv_bias", true);
  text->Alias("time_step_limit", "mamba_dt_limit", true);
  // Other spellings of one thing: two values contradict each other.
  if (!text->Has("mamba_n_groups"))
    text->Alias("n_groups", "mamba_num_groups", false);
  text->Alias("ssm_state_size", "mamba_state_dim", false);
  text->Alias("head_dim", "attention_head_dim", false);
}

void ReadLayers(JsonFields* text, ModelConfig* config) {
  const LayerGlobals globals = ReadLayerGlobals(text);
  if (!text->ok()) return;

  if (!text->Has(kTrunkTable.blocks) && !text->Has(kTrunkTable.kinds) &&
      !text->Has(kTrunkTable.pattern)) {
    text->Fail(absl::InvalidArgumentError(absl::StrCat(
        text->file(),
        ": no layer table: one of block_configs, layers_block_type and "
        "hybrid_override_pattern is needed")));
    return;
  }
  config->layers = ReadTable(text, globals, kTrunkTable, "");
  const int64_t declared = text->Int("num_hidden_layers", -1, 0, kLayersMax);
  if (!text->ok()) return;
  const auto listed = static_cast<int64_t>(config->layers.size());
  if (listed == 0) {
    text->Fail(absl::InvalidArgumentError(
        absl::StrCat(text->file(), ": the layer table is empty")));
  } else if (declared >= 0 && declared != listed) {
    text->FailField("num_hidden_layers",
                    absl::StrCat("is ", declared, " but the layer table lists ",
                                 listed, " layers"));
  }
  CheckLayers(text, config->layers, "");

  const int64_t depth = text->Int("num_nextn_predict_layers", 0, 0, 1024);
  if (!text->ok() || depth == 0) return;
  if (depth > 1) {
    text->Fail(absl::UnimplementedError(absl::StrCat(
        text->file(), ": ", text->NameOf("num_nextn_predict_layers"), " is ",
        depth, ": one prediction depth is supported")));
    return;
  }
  config->mtp_layers = ReadTable(text, globals, kMtpTable, "*E");
  if (text->ok() && config->mtp_layers.empty()) {
    text->Fail(absl::InvalidArgumentError(absl::StrCat(
        text->file(), ": the layer table of the prediction head is empty")));
  }
  CheckLayers(text, config->mtp_layers, "mtp ");
}

}  // namespace trunkline::model
