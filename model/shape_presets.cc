#include "model/shape_presets.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "model/config_json.h"

namespace trunkline::model {
namespace {

// One release. Common to all of them: heads of 128, convolution over 4, 8 Mamba
// groups, heads of 64 there, state 128, eps 1e-5, an untied head.
struct Release {
  const char* name;
  const char* layers;
  const char* mtp_layers;  // "" for none
  LayerTableSpelling spelling;
  DType router_dtype;
  int64_t hidden;
  int64_t max_positions;
  int64_t mamba_heads;
  int64_t heads, kv_heads;
  MoeShape moe;
};

constexpr char kNanoLayers[] =
    "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME";
constexpr char kSuperLayers[] =
    "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*"
    "EMEMEMEM*EMEMEMEME";
constexpr char kUltraLayers[] =
    "MEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*EMEMEM*EMEMEMEM*"
    "EMEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME";

const std::vector<Release>& Releases() {
  constexpr MoeShape kNanoMoe = {128, 6, 1856, 3712, 0, 1, 1, true, 2.5f};
  constexpr MoeShape kSuperMoe = {512, 22, 2688, 5376, 1024, 1, 1, true, 5.0f};
  constexpr MoeShape kUltraMoe = {512, 22, 5120, 10240, 2048, 1, 1, true, 5.0f};
  static const std::vector<Release> releases = {
      {"nano", kNanoLayers, "", LayerTableSpelling::kPattern, DType::kF32, 2688,
       262144, 64, 32, 2, kNanoMoe},
      {"lightning", kNanoLayers, "*E", LayerTableSpelling::kNames, DType::kF32,
       2688, 1048576, 64, 32, 2, kNanoMoe},
      {"super", kSuperLayers, "*E", LayerTableSpelling::kPattern, DType::kBF16,
       4096, 262144, 128, 32, 2, kSuperMoe},
      {"ultra", kUltraLayers, "*E", LayerTableSpelling::kNames, DType::kBF16,
       8192, 262144, 256, 64, 2, kUltraMoe},
  };
  return releases;
}

ModelConfig EmptyConfig() {
  ModelConfig config;
  config.architecture = "NemotronHForCausalLM";
  config.model_type = "nemotron_h";
  config.bos_token_id = 1;
  config.pad_token_id = 0;
  config.eos_token_ids = {2};
  return config;
}

std::vector<LayerSpec> AllKinds(const MambaShape& mamba,
                                const AttentionShape& attention,
                                const MoeShape& moe) {
  std::vector<LayerSpec> layers(3);
  layers[0].kind = LayerKind::kMamba;
  layers[0].mamba = mamba;
  layers[1].kind = LayerKind::kAttention;
  layers[1].attention = attention;
  layers[2].kind = LayerKind::kMoe;
  layers[2].moe = moe;
  return layers;
}

absl::StatusOr<std::vector<LayerSpec>> LayersLike(
    absl::string_view pattern, const std::vector<LayerSpec>& kinds) {
  std::vector<LayerSpec> layers;
  for (const char letter : pattern) {
    const LayerSpec* like = nullptr;
    std::string known;
    for (const LayerSpec& layer : kinds) {
      const char other = LayerKindLetter(layer.kind);
      if (known.find(other) == std::string::npos) known += other;
      if (like == nullptr && other == letter) like = &layer;
    }
    if (like == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          "layer pattern \"", pattern, "\": the shape has no layer '",
          std::string(1, letter), "'; it has ", known));
    }
    layers.push_back(*like);
    layers.back().index = LayerIndex(static_cast<uint32_t>(layers.size() - 1));
  }
  if (layers.empty()) {
    return absl::InvalidArgumentError("layer pattern \"\": a model has layers");
  }
  return layers;
}

SynthesisSpec TinyShape() {
  SynthesisSpec spec;
  spec.config = EmptyConfig();
  spec.config.vocab_size = 512;
  spec.config.hidden_size = 64;
  spec.config.max_positions = 8192;
  std::vector<LayerSpec> kinds = AllKinds({8, 16, 2, 16, 4}, {4, 2, 16},
                                          {16, 4, 48, 96, 0, 1, 1, true, 2.5f});
  kinds.emplace_back();
  kinds.back().kind = LayerKind::kMlp;
  kinds.back().mlp.width = 128;
  spec.config.layers = *LayersLike("MEM*EM-ME", kinds);
  return spec;
}

SynthesisSpec ShapeOfRelease(const Release& release) {
  SynthesisSpec spec;
  spec.config = EmptyConfig();
  spec.config.vocab_size = 131072;
  spec.config.hidden_size = release.hidden;
  spec.config.max_positions = release.max_positions;
  const std::vector<LayerSpec> kinds =
      AllKinds({release.mamba_heads, 64, 8, 128, 4},
               {release.heads, release.kv_heads, 128}, release.moe);
  spec.config.layers = *LayersLike(release.layers, kinds);
  if (*release.mtp_layers != '\0')
    spec.config.mtp_layers = *LayersLike(release.mtp_layers, kinds);
  spec.router_dtype = release.router_dtype;
  spec.spelling = release.spelling;
  return spec;
}

}  // namespace

std::vector<std::string> ShapeNames() {
  std::vector<std::string> names;
  for (const Release& release : Releases()) names.emplace_back(release.name);
  names.emplace_back("tiny");
  return names;
}

absl::StatusOr<SynthesisSpec> NamedShape(absl::string_view name) {
  if (name == "tiny") return TinyShape();
  for (const Release& release : Releases()) {
    if (name == release.name) return ShapeOfRelease(release);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "shape \"", name, "\": known are ", absl::StrJoin(ShapeNames(), ", ")));
}

SynthesisSpec ShapeOf(const ModelConfig& config) {
  SynthesisSpec spec;
  spec.config = config;
  // Layers of one kind that differ can only be said block by block.
  if (!ConfigJson(config, spec.dtype, spec.spelling).ok())
    spec.spelling = LayerTableSpelling::kBlocks;
  return spec;
}

absl::Status SetLayers(absl::string_view pattern, ModelConfig* config) {
  TL_ASSIGN_OR_RETURN(config->layers, LayersLike(pattern, config->layers));
  return absl::OkStatus();
}

}  // namespace trunkline::model
