#pragma once

// The process's listeners by name: what a port space is to tcp.

#include <memory>
#include <mutex>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "transport/inprocess/node.h"

namespace trunkline::transport::inprocess {

class Registry {
 public:
  static Registry& OfThisProcess();

  // Returns the name under which the node is now found.
  absl::StatusOr<std::string> Add(const std::string& name,
                                  const std::shared_ptr<Node>& node);
  std::shared_ptr<Node> Find(const std::string& name) const;  // or null
  void RemoveAllOf(const Node* node);

 private:
  mutable std::mutex mutex_;
  absl::flat_hash_map<std::string, std::shared_ptr<Node>> listeners_;
  uint64_t next_number_ = 1;
};

}  // namespace trunkline::transport::inprocess
