#include "model/tensor_names.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace trunkline::model {
namespace {

constexpr absl::string_view kDroppedPrefixes[] = {
    "vision_model.",  "vision_tower.",     "mlp1.",
    "sound_encoder.", "sound_projection.", "vision_final_layernorm.",
    "audio_encoder.", "audio_projection."};

constexpr absl::string_view kExperts = ".experts.";

}  // namespace

CanonicalName CanonicalTensorName(absl::string_view stored, bool wrapped) {
  CanonicalName result;
  if (wrapped) {
    for (absl::string_view prefix : kDroppedPrefixes) {
      if (!absl::StartsWith(stored, prefix)) continue;
      result.kind = CanonicalName::Kind::kDropped;
      return result;
    }
  }
  absl::ConsumePrefix(&stored, "language_model.");
  const bool trunk = absl::ConsumePrefix(&stored, "backbone.") ||
                     absl::ConsumePrefix(&stored, "model.");
  const bool outside =
      stored == "lm_head.weight" || absl::StartsWith(stored, "mtp.");
  if (trunk == outside) return result;
  result.kind = CanonicalName::Kind::kTensor;
  result.name = stored == "embed_tokens.weight" ? "embeddings.weight"
                                                : std::string(stored);
  return result;
}

std::string StackedExpertsName(absl::string_view canonical) {
  const size_t at = canonical.find(kExperts);
  if (at == absl::string_view::npos) return "";
  const absl::string_view head = canonical.substr(0, at + kExperts.size());
  absl::string_view tail = canonical.substr(head.size());  // "7.up_proj.weight"
  tail.remove_prefix(tail.find('.') + 1);
  absl::ConsumeSuffix(&tail, ".weight");
  return absl::StrCat(head, tail);
}

}  // namespace trunkline::model
