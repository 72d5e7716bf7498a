#include "model/layer_globals.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "model/config_layers.h"
#include "model/config_names.h"

namespace trunkline::model {
namespace {

using nlohmann::json;

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

}  // namespace

LayerGlobals ReadLayerGlobals(JsonFields* text) {
  LayerGlobals globals;
  globals.mamba = ReadMamba(text);
  globals.attention = ReadAttention(text);
  globals.moe = ReadMoe(text);
  globals.dense_widths = ReadDenseWidths(text);
  globals.shared_experts = text->Int("n_shared_experts", 1, 0, 1024);
  globals.blockwise = ReadBlockwiseMembers(text);
  return globals;
}

}  // namespace trunkline::model
