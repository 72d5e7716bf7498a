#include "model/config_layers.h"

#include <cmath>
#include <limits>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "model/config_names.h"

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

MambaShape ReadMamba(JsonFields* text) {
  MambaShape mamba;
  mamba.heads = text->Int("mamba_num_heads", 128, 0, kDimensionMax);
  mamba.head_dim = text->Int("mamba_head_dim", 64, 0, kDimensionMax);
  mamba.groups = text->Int("n_groups", 8, 0, kDimensionMax);
  mamba.state_size = text->Int("ssm_state_size", 128, 0, kDimensionMax);
  mamba.conv_kernel = text->Int("conv_kernel", 4, 0, 64);
  mamba.conv_bias = text->Bool("use_conv_bias", true);
  const json* limit = text->Find("time_step_limit");
  if (limit == nullptr) return mamba;
  double low = 0, high = 0;
  if (!limit->is_array() || limit->size() != 2 ||
      !ReadJsonNumber((*limit)[0], &low) ||
      !ReadJsonNumber((*limit)[1], &high) || !(low >= 0) || !(low <= high) ||
      std::isinf(low)) {
    text->FailField(
        "time_step_limit",
        absl::StrCat("is ", JsonForError(*limit),
                     ", two numbers 0 <= low <= high are expected"));
    return mamba;
  }
  constexpr double kLargest = std::numeric_limits<float>::max();
  if (high <= kLargest) {
    mamba.dt_min = static_cast<float>(low);
    mamba.dt_max = static_cast<float>(high);
  } else if (low > 0) {
    // [0, inf] clamps nothing. Engines disagree about what a lower bound
    // alone means, so it is refused rather than guessed.
    text->Fail(absl::UnimplementedError(
        absl::StrCat(text->file(), ": ", text->NameOf("time_step_limit"),
                     " is ", JsonForError(*limit),
                     ": a lower bound without an upper one is not "
                     "supported")));
  }
  return mamba;
}

AttentionShape ReadAttention(JsonFields* text) {
  AttentionShape attention;
  attention.heads = text->Int("num_attention_heads", 32, 0, kDimensionMax);
  attention.kv_heads = text->Int("num_key_value_heads", 8, 0, kDimensionMax);
  attention.head_dim = text->Int("head_dim", 128, 0, kDimensionMax);
  attention.window = text->Int("sliding_window", 0, 1, kPositionsMax);
  return attention;
}

MoeShape ReadMoe(JsonFields* text) {
  MoeShape moe;
  moe.experts = text->Int("n_routed_experts", 8, 0, kExpertsMax);
  moe.top_k = text->Int("num_experts_per_tok", 2, 0, kExpertsMax);
  moe.width = text->Int("moe_intermediate_size", 7688, 0, kDimensionMax);
  moe.shared_width =
      text->Int("moe_shared_expert_intermediate_size", 7688, 0, kDimensionMax) *
      text->Int("n_shared_experts", 1, 0, 1024);
  moe.latent = text->Int("moe_latent_size", 0, 1, kDimensionMax);
  moe.n_group = text->Int("n_group", 1, 1, kExpertsMax);
  moe.topk_group = text->Int("topk_group", 1, 1, kExpertsMax);
  moe.normalize = text->Bool("norm_topk_prob", true);
  const double scale = text->Number("routed_scaling_factor", 1.0);
  if (!(static_cast<float>(scale) > 0 && scale <= 1e6)) {
    text->FailField("routed_scaling_factor",
                    absl::StrCat("is ", scale,
                                 ", a number above 0 and at most "
                                 "1e6 is expected"));
  }
  moe.scale = static_cast<float>(scale);
  return moe;
}

// The dense width of each '-' layer in order; one entry serves them all.
std::vector<int64_t> ReadDenseWidths(JsonFields* text) {
  const json* value = text->Find("intermediate_size");
  if (value == nullptr || !value->is_array()) {
    return {text->Int("intermediate_size", 21504, 0, kDimensionMax)};
  }
  std::vector<int64_t> widths;
  for (const json& entry : *value) {
    const bool fits = entry.is_number_integer() && entry.get<double>() >= 1 &&
                      entry.get<double>() <= static_cast<double>(kDimensionMax);
    if (!fits) {
      text->FailField(
          absl::StrCat("intermediate_size[", widths.size(), "]"),
          absl::StrCat("is ", JsonForError(entry), ", an integer in 1..",
                       kDimensionMax, " is expected"));
      return {0};
    }
    widths.push_back(entry.get<int64_t>());
  }
  if (widths.empty()) {
    text->FailField("intermediate_size", "is an empty list");
    return {0};
  }
  return widths;
}

struct Globals {
  MambaShape mamba;
  AttentionShape attention;
  MoeShape moe;
  std::vector<int64_t> dense_widths;
  int64_t shared_experts = 1;
  std::set<std::string> blockwise;  // live per block: no global stands for them
};

std::set<std::string> ReadBlockwiseMembers(JsonFields* text) {
  std::set<std::string> names;
  const json* list = text->Find("blockwise_members");
  if (list == nullptr) return names;
  if (!list->is_array()) {
    text->FailField("blockwise_members",
                    absl::StrCat("is ", JsonForError(*list),
                                 ", a list of field names is expected"));
    return names;
  }
  for (const json& entry : *list) {
    if (!entry.is_string() || !IsBlockName(entry.get<std::string>())) {
      text->FailField("blockwise_members",
                      absl::StrCat("holds ", JsonForError(entry),
                                   ", which is no field of a block"));
      return names;
    }
    names.insert(entry.get<std::string>());
  }
  return names;
}

void ApplyBlock(const Globals& globals, JsonFields* text, JsonFields* block,
                LayerSpec* layer) {
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

class LayerCheck {
 public:
  LayerCheck(JsonFields* text, std::string place, const LayerSpec& layer)
      : text_(text), place_(std::move(place)), layer_(layer) {}

  void Run() {
    switch (layer_.kind) {
      case LayerKind::kMamba:
        return Mamba(layer_.mamba);
      case LayerKind::kAttention:
        return Attention(layer_.attention);
      case LayerKind::kMlp:
        return Positive("intermediate_size", layer_.mlp.width);
      case LayerKind::kMoe:
        return Moe(layer_.moe);
    }
  }

 private:
  template <typename... Parts>
  void Fail(const Parts&... parts) {
    text_->Fail(absl::InvalidArgumentError(
        absl::StrCat(text_->file(), ": ", place_, " (",
                     LayerKindName(layer_.kind), "): ", parts...)));
  }
  void Positive(const char* name, int64_t value) {
    if (value < 1) Fail(text_->NameOf(name), " is ", value, ", not above 0");
  }
  void Bounded(const char* what, int64_t value) {
    if (value > kDimensionMax)
      Fail(what, " is ", value, ", above ", kDimensionMax);
  }

  void Mamba(const MambaShape& mamba) {
    Positive("mamba_num_heads", mamba.heads);
    Positive("mamba_head_dim", mamba.head_dim);
    Positive("n_groups", mamba.groups);
    Positive("ssm_state_size", mamba.state_size);
    Positive("conv_kernel", mamba.conv_kernel);
    if (!text_->ok()) return;
    // A head reads the group heads / groups by integer division, and the gated
    // norm works on inner / groups columns.
    if (mamba.heads % mamba.groups != 0) {
      Fail("mamba_num_heads ", mamba.heads, " is not divisible by n_groups ",
           mamba.groups);
    }
    Bounded("mamba_num_heads * mamba_head_dim", mamba.inner());
    Bounded("n_groups * ssm_state_size", mamba.groups * mamba.state_size);
  }

  void Attention(const AttentionShape& attention) {
    Positive("num_attention_heads", attention.heads);
    Positive("num_key_value_heads", attention.kv_heads);
    Positive("head_dim", attention.head_dim);
    if (!text_->ok()) return;
    if (attention.heads % attention.kv_heads != 0) {
      Fail("num_attention_heads ", attention.heads,
           " is not divisible by num_key_value_heads ", attention.kv_heads);
    }
    Bounded("num_attention_heads * head_dim",
            attention.heads * attention.head_dim);
  }

  void Moe(const MoeShape& moe) {
    Positive("n_routed_experts", moe.experts);
    Positive("num_experts_per_tok", moe.top_k);
    Positive("moe_intermediate_size", moe.width);
    Bounded("the shared experts' width", moe.shared_width);
    if (!text_->ok()) return;
    if (moe.top_k > moe.experts) {
      Fail("num_experts_per_tok ", moe.top_k, " is above n_routed_experts ",
           moe.experts);
    } else if (moe.experts % moe.n_group != 0) {
      Fail("n_routed_experts ", moe.experts, " is not divisible by n_group ",
           moe.n_group);
    } else if (moe.topk_group > moe.n_group) {
      Fail("topk_group ", moe.topk_group, " is above n_group ", moe.n_group);
    } else if (moe.n_group > 1 && moe.experts / moe.n_group < 2) {
      Fail("n_group ", moe.n_group, " leaves one of ", moe.experts,
           " experts in each group; a group is judged by its best two");
    } else if (moe.top_k > moe.topk_group * (moe.experts / moe.n_group)) {
      Fail("num_experts_per_tok ", moe.top_k, " is above the ",
           moe.topk_group * (moe.experts / moe.n_group),
           " experts of the topk_group ", moe.topk_group, " kept groups");
    }
  }

  JsonFields* text_;
  const std::string place_;
  const LayerSpec& layer_;
};

LayerSpec LayerFromGlobals(const Globals& globals, LayerKind kind,
                           size_t index) {
  LayerSpec layer;
  layer.index = LayerIndex(static_cast<uint32_t>(index));
  layer.kind = kind;
  if (kind == LayerKind::kMamba) layer.mamba = globals.mamba;
  if (kind == LayerKind::kAttention) layer.attention = globals.attention;
  if (kind == LayerKind::kMoe) layer.moe = globals.moe;
  return layer;
}

std::vector<LayerSpec> LayersOfBlocks(JsonFields* text, const Globals& globals,
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

void SetDenseWidths(JsonFields* text, const Globals& globals,
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

std::vector<LayerSpec> ReadTable(JsonFields* text, const Globals& globals,
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
    LayerCheck(text, absl::StrCat(prefix, "layer ", layer.index.value), layer)
        .Run();
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
  Globals globals;
  globals.mamba = ReadMamba(text);
  globals.attention = ReadAttention(text);
  globals.moe = ReadMoe(text);
  globals.dense_widths = ReadDenseWidths(text);
  globals.shared_experts = text->Int("n_shared_experts", 1, 0, 1024);
  globals.blockwise = ReadBlockwiseMembers(text);
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
