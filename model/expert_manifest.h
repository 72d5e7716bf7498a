#pragma once

// What a machine needs to know of the routed experts without holding them: the
// model's digest and the digest of each expert. An expert worker that has this
// file beside config.json instead of the weights takes its experts from peers
// and proves that they are the model's own. Pure apart from MakeExpertManifest,
// which reads the experts.

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/dtype.h"
#include "common/ids.h"
#include "model/model_config.h"

namespace trunkline::model {

class Checkpoint;

inline constexpr char kManifestName[] = "expert_manifest.json";

// XXH3-128 over the stored bytes of an expert's matrices, up then down.
using ExpertDigest = std::array<std::byte, 16>;
ExpertDigest DigestOfParts(std::span<const std::span<const std::byte>> parts);
std::string DigestHex(const ExpertDigest& digest);  // 32 hex digits

struct ExpertChecksum {
  LayerIndex layer;
  ExpertId expert;
  ExpertDigest digest{};
};

struct ExpertManifest {
  std::string model_digest;   // Checkpoint::digest
  std::string config_digest;  // of the configuration it was made with
  DType dtype = DType::kF32;  // of the experts' matrices
  bool tied_head = false;
  std::vector<ExpertChecksum> experts;  // ascending by layer and expert
};

// Reads every routed expert once. The text of kManifestName.
absl::StatusOr<std::string> MakeExpertManifest(const Checkpoint& checkpoint);
// INVALID_ARGUMENT names the file and the field. config: of the directory,
// which the manifest must fit.
absl::StatusOr<ExpertManifest> ParseExpertManifest(const std::string& text,
                                                   const std::string& file,
                                                   const ModelConfig& config);

}  // namespace trunkline::model
