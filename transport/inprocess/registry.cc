#include "transport/inprocess/registry.h"

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace trunkline::transport::inprocess {

Registry& Registry::OfThisProcess() {
  static Registry* const registry = new Registry;  // outlives every transport
  return *registry;
}

absl::StatusOr<std::string> Registry::Add(const std::string& name,
                                          const std::shared_ptr<Node>& node) {
  std::lock_guard lock(mutex_);
  std::string taken = name;
  if (absl::EndsWith(name, ":0")) {
    do {
      taken = absl::StrCat(name.substr(0, name.size() - 1), next_number_++);
    } while (listeners_.contains(taken));
  }
  if (!listeners_.emplace(taken, node).second) {
    return absl::AlreadyExistsError(
        absl::StrCat("inprocess://", taken, " is in use in this process"));
  }
  return taken;
}

std::shared_ptr<Node> Registry::Find(const std::string& name) const {
  std::lock_guard lock(mutex_);
  const auto it = listeners_.find(name);
  return it == listeners_.end() ? nullptr : it->second;
}

std::shared_ptr<BufferPool> Registry::Pool(int64_t bytes_max) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<BufferPool> pool = pool_.lock();
  if (pool == nullptr) {
    pool = std::make_shared<BufferPool>(bytes_max);
    pool_ = pool;
  } else {
    pool->Allow(bytes_max);
  }
  return pool;
}

void Registry::RemoveAllOf(const Node* node) {
  std::lock_guard lock(mutex_);
  absl::erase_if(listeners_,
                 [&](const auto& entry) { return entry.second.get() == node; });
}

}  // namespace trunkline::transport::inprocess
