#include "model/checkpoint_digest.h"

#include <xxhash.h>

#include <cstdint>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "model/semantic_text.h"

namespace trunkline::model {
namespace {

constexpr int64_t kSampleBytes = 4096;

class Hasher {
 public:
  Hasher() : state_(XXH3_createState()) {
    TL_CHECK(state_ != nullptr);
    XXH3_128bits_reset(state_);
  }
  ~Hasher() { XXH3_freeState(state_); }
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;

  void Add(absl::string_view bytes) {
    XXH3_128bits_update(state_, bytes.data(), bytes.size());
  }
  std::string Hex() const {
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state_));
    return absl::BytesToHexString(
        absl::string_view(reinterpret_cast<const char*>(canonical.digest),
                          sizeof(canonical.digest)));
  }

 private:
  XXH3_state_t* state_;
};

}  // namespace

absl::StatusOr<std::string> ComputeDigest(
    const ModelConfig& config, const std::vector<TensorInfo>& tensors,
    const std::vector<std::shared_ptr<const SafetensorsFile>>& files) {
  Hasher hasher;
  hasher.Add(SemanticConfigText(config));
  std::string sample(2 * kSampleBytes, '\0');
  for (const TensorInfo& tensor : tensors) {
    hasher.Add(absl::StrCat(tensor.name, " ", DTypeName(tensor.dtype), " ",
                            ShapeString(tensor.shape), "\n"));
    const SafetensorsFile& file = *files[tensor.file];
    if (tensor.bytes <= 2 * kSampleBytes) {
      TL_RETURN_IF_ERROR(file.Read(tensor.offset, tensor.bytes, sample.data()));
      hasher.Add(absl::string_view(sample).substr(0, tensor.bytes));
      continue;
    }
    TL_RETURN_IF_ERROR(file.Read(tensor.offset, kSampleBytes, sample.data()));
    TL_RETURN_IF_ERROR(file.Read(tensor.offset + tensor.bytes - kSampleBytes,
                                 kSampleBytes, sample.data() + kSampleBytes));
    hasher.Add(sample);
  }
  return hasher.Hex();
}

}  // namespace trunkline::model
