#pragma once

// What the digest of each expert's stored bytes is, as far as this worker
// knows: from a manifest, or from having loaded the expert. Thread-safe.

#include <map>
#include <mutex>
#include <optional>

#include "expert_worker/expert_key.h"
#include "expert_worker/shard_frame.h"

namespace trunkline::expert {

class ExpertDigests {
 public:
  std::optional<ExpertDigest> Find(ExpertKey key) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = digests_.find(key);
    if (found == digests_.end()) return std::nullopt;
    return found->second;
  }
  void Set(ExpertKey key, const ExpertDigest& digest) {
    const std::lock_guard<std::mutex> lock(mutex_);
    digests_[key] = digest;
  }

 private:
  mutable std::mutex mutex_;
  std::map<ExpertKey, ExpertDigest> digests_;  // by mutex_
};

}  // namespace trunkline::expert
