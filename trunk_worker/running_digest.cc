#include "trunk_worker/running_digest.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>

#include "absl/strings/escaping.h"

namespace trunkline::trunk {

Digest DigestOf(const void* data, size_t bytes) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(data, bytes));
  Digest digest;
  std::memcpy(digest.data(), canonical.digest, digest.size());
  return digest;
}

void RunningDigest::Add(const void* data, size_t bytes) {
  const Digest item = DigestOf(data, bytes);
  std::array<uint8_t, 2 * sizeof(Digest)> both;
  std::memcpy(both.data(), digest_.data(), digest_.size());
  std::memcpy(both.data() + digest_.size(), item.data(), item.size());
  digest_ = DigestOf(both.data(), both.size());
}

std::string RunningDigest::Hex() const {
  return absl::BytesToHexString(absl::string_view(
      reinterpret_cast<const char*>(digest_.data()), digest_.size()));
}

}  // namespace trunkline::trunk
