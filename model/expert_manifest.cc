#include "model/expert_manifest.h"

#include <xxhash.h>

#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "model/checkpoint.h"
#include "model/json_text.h"
#include "model/semantic_text.h"

namespace trunkline::model {
namespace {

constexpr int64_t kFormat = 1;
constexpr size_t kManifestBytesMax = size_t{64} << 20;

absl::Status Bad(const std::string& file, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(file, ": ", what));
}

bool IsHexDigest(const std::string& text) {
  if (text.size() != 2 * sizeof(ExpertDigest)) return false;
  for (const char c : text) {
    if (!absl::ascii_isxdigit(static_cast<unsigned char>(c))) return false;
  }
  return true;
}

ExpertDigest FromHex(const std::string& text) {
  const std::string bytes = absl::HexStringToBytes(text);
  ExpertDigest digest;
  TL_CHECK_EQ(bytes.size(), digest.size());
  std::memcpy(digest.data(), bytes.data(), digest.size());
  return digest;
}

// Of what the arithmetic depends on, as in the model's digest.
std::string ConfigDigest(ModelConfig config, bool tied_head) {
  config.tie_word_embeddings = tied_head;
  const std::string text = SemanticConfigText(config);
  const std::span<const std::byte> bytes(
      reinterpret_cast<const std::byte*>(text.data()), text.size());
  return DigestHex(DigestOfParts(std::span(&bytes, 1)));
}

absl::StatusOr<ExpertDigest> DigestOfExpert(const Checkpoint& checkpoint,
                                            LayerIndex layer, ExpertId expert) {
  TL_ASSIGN_OR_RETURN(const std::unique_ptr<WeightMap> map,
                      checkpoint.MapExpert(layer, expert));
  const std::string base =
      absl::StrCat("layers.", layer.value, ".mixer.experts.", expert.value);
  TL_ASSIGN_OR_RETURN(const TensorView up, map->Find(base + ".up_proj.weight"));
  TL_ASSIGN_OR_RETURN(const TensorView down,
                      map->Find(base + ".down_proj.weight"));
  const std::span<const std::byte> parts[] = {
      {up.data, static_cast<size_t>(up.bytes())},
      {down.data, static_cast<size_t>(down.bytes())}};
  const ExpertDigest digest = DigestOfParts(parts);
  map->ReleasePages();
  return digest;
}

absl::Status ReadLayer(const nlohmann::json& layer, const std::string& file,
                       const LayerSpec& spec, ExpertManifest* manifest) {
  const std::string label =
      absl::StrCat("layers: moe layer ", spec.index.value);
  if (!layer.is_object() || !layer.contains("layer") ||
      !layer["layer"].is_number_unsigned() ||
      layer["layer"].get<uint64_t>() != spec.index.value) {
    return Bad(file, label + " is missing or out of order");
  }
  if (!layer.contains("digests") || !layer["digests"].is_array() ||
      layer["digests"].size() != static_cast<size_t>(spec.moe.experts)) {
    return Bad(file, absl::StrCat(label, " has no digests of its ",
                                  spec.moe.experts, " experts"));
  }
  uint32_t expert = 0;
  for (const nlohmann::json& digest : layer["digests"]) {
    if (!digest.is_string() || !IsHexDigest(digest.get<std::string>())) {
      return Bad(file, absl::StrCat(label, " expert ", expert, ": ",
                                    JsonForError(digest),
                                    " is no digest of 32 hex digits"));
    }
    manifest->experts.push_back({.layer = spec.index,
                                 .expert = ExpertId(expert++),
                                 .digest = FromHex(digest.get<std::string>())});
  }
  return absl::OkStatus();
}

}  // namespace

ExpertDigest DigestOfParts(std::span<const std::span<const std::byte>> parts) {
  XXH3_state_t* state = XXH3_createState();
  TL_CHECK(state != nullptr);
  XXH3_128bits_reset(state);
  for (const std::span<const std::byte> part : parts) {
    XXH3_128bits_update(state, part.data(), part.size());
  }
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state));
  XXH3_freeState(state);
  ExpertDigest digest;
  static_assert(sizeof(canonical.digest) == sizeof(digest));
  std::memcpy(digest.data(), canonical.digest, sizeof(digest));
  return digest;
}

std::string DigestHex(const ExpertDigest& digest) {
  return absl::BytesToHexString(absl::string_view(
      reinterpret_cast<const char*>(digest.data()), digest.size()));
}

absl::StatusOr<std::string> MakeExpertManifest(const Checkpoint& checkpoint) {
  const ModelConfig& config = checkpoint.config();
  nlohmann::ordered_json layers = nlohmann::ordered_json::array();
  DType dtype = DType::kF32;
  for (const LayerSpec& spec : config.layers) {
    if (spec.kind != LayerKind::kMoe) continue;
    nlohmann::ordered_json digests = nlohmann::ordered_json::array();
    for (int64_t e = 0; e < spec.moe.experts; ++e) {
      TL_ASSIGN_OR_RETURN(const ExpertDigest digest,
                          DigestOfExpert(checkpoint, spec.index,
                                         ExpertId(static_cast<uint32_t>(e))));
      digests.push_back(DigestHex(digest));
    }
    layers.push_back({{"layer", spec.index.value}, {"digests", digests}});
  }
  if (layers.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(checkpoint.directory(), ": has no routed experts"));
  }
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    if (tensor.role == TensorRole::kRoutedExpert) dtype = tensor.dtype;
  }
  nlohmann::ordered_json document;
  document["format"] = kFormat;
  document["model_digest"] = checkpoint.digest();
  document["config_digest"] = ConfigDigest(config, config.tie_word_embeddings);
  document["tied_head"] = config.tie_word_embeddings;
  document["dtype"] = std::string(DTypeName(dtype));
  document["layers"] = std::move(layers);
  return document.dump(1) + "\n";
}

absl::StatusOr<ExpertManifest> ParseExpertManifest(const std::string& text,
                                                   const std::string& file,
                                                   const ModelConfig& config) {
  JsonLimits limits;
  limits.bytes_max = kManifestBytesMax;
  TL_ASSIGN_OR_RETURN(const nlohmann::json document,
                      ParseJson(text, file, limits));
  JsonFields fields(document, "", file);
  ExpertManifest manifest;
  const int64_t format = fields.Int("format", 0, 0, 1 << 30);
  manifest.model_digest = fields.String("model_digest", "");
  manifest.config_digest = fields.String("config_digest", "");
  manifest.tied_head = fields.Bool("tied_head", false);
  const std::string dtype = fields.String("dtype", "");
  TL_RETURN_IF_ERROR(fields.status());
  if (format != kFormat) {
    return Bad(file,
               absl::StrCat("format is ", format, ", known is ", kFormat));
  }
  for (const std::string* digest :
       {&manifest.model_digest, &manifest.config_digest}) {
    if (!IsHexDigest(*digest)) {
      return Bad(file, absl::StrCat("\"", *digest,
                                    "\" is no digest of 32 hex digits"));
    }
  }
  const absl::StatusOr<DType> parsed = ParseDType(dtype);
  if (!parsed.ok()) return Bad(file, std::string(parsed.status().message()));
  manifest.dtype = *parsed;
  if (manifest.config_digest != ConfigDigest(config, manifest.tied_head)) {
    return Bad(file, "was made with another config.json");
  }
  const nlohmann::json* layers = fields.Find("layers");
  if (layers == nullptr || !layers->is_array()) {
    return Bad(file, "layers is missing");
  }
  size_t next = 0;
  for (const LayerSpec& spec : config.layers) {
    if (spec.kind != LayerKind::kMoe) continue;
    const nlohmann::json missing;
    TL_RETURN_IF_ERROR(
        ReadLayer(next < layers->size() ? (*layers)[next] : missing, file, spec,
                  &manifest));
    ++next;
  }
  if (next != layers->size()) {
    return Bad(file, absl::StrCat("layers lists ", layers->size(),
                                  ", the model has ", next, " moe layers"));
  }
  return manifest;
}

}  // namespace trunkline::model
