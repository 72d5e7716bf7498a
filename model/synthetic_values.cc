#include <cmath>

#include "absl/strings/match.h"
#include "common/random.h"
#include "model/synthesize.h"

namespace trunkline::model {
namespace {

// FNV-1a: the name's part of the seed.
uint64_t HashName(absl::string_view name) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : name) {
    hash ^= static_cast<uint8_t>(c);
    hash *= 0x100000001b3ull;
  }
  return hash;
}

struct Distribution {
  double center = 0;
  double spread = 0;
};

// Uniform distributions only: sqrt is exact everywhere, log and exp are not.
Distribution DistributionOf(absl::string_view name,
                            const std::vector<int64_t>& shape) {
  if (absl::EndsWith(name, "A_log")) return {1.386, 1.386};  // A in -16..-1
  // softplus gives time steps between 0.001 and 0.1.
  if (absl::EndsWith(name, "dt_bias")) return {-4.6, 2.3};
  if (absl::EndsWith(name, "mixer.D")) return {1.0, 0.1};
  if (absl::EndsWith(name, "conv1d.bias")) return {0.0, 0.1};
  if (absl::EndsWith(name, "e_score_correction_bias")) return {0.0, 0.05};
  if (shape.size() == 1) return {1.0, 0.1};  // norms
  if (absl::EndsWith(name, "embeddings.weight")) return {0.0, std::sqrt(3.0)};
  // Variance one over the inputs keeps a product's rows at the size of its
  // input; what is added to the residual stream is halved, so that a hundred
  // layers grow it by little. The head is doubled to make choices clear.
  double scale = 1.0;
  for (const char* output : {"out_proj.weight", "o_proj.weight",
                             "down_proj.weight", "fc2_latent_proj.weight"}) {
    if (absl::EndsWith(name, output)) scale = 0.5;
  }
  if (absl::EndsWith(name, "lm_head.weight")) scale = 2.0;
  return {0.0, scale * std::sqrt(3.0 / static_cast<double>(shape.back()))};
}

}  // namespace

SyntheticTensor::SyntheticTensor(uint64_t seed, absl::string_view name,
                                 const std::vector<int64_t>& shape)
    : stream_(SplitMix64(seed) ^ HashName(name)) {
  const Distribution distribution = DistributionOf(name, shape);
  center_ = distribution.center;
  spread_ = distribution.spread;
}

float SyntheticTensor::At(int64_t index) const {
  const double unit =
      RandomStream(stream_, static_cast<uint64_t>(index)).NextUnit();
  return static_cast<float>(center_ + spread_ * (2.0 * unit - 1.0));
}

}  // namespace trunkline::model
