#pragma once

// What the transports of one process share: the listeners by name, as a port
// space is shared by tcp sockets, and the pool. A message's memory moves from
// sender to receiver; were each to have a pool of its own, the one would always
// run dry and the other overflow.

#include <memory>
#include <mutex>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "transport/buffer_pool.h"
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
  // The process's pool, which lives as long as one of its owners and keeps as
  // much as the most generous of them allows.
  std::shared_ptr<BufferPool> Pool(int64_t bytes_max);

 private:
  mutable std::mutex mutex_;
  absl::flat_hash_map<std::string, std::shared_ptr<Node>> listeners_;
  std::weak_ptr<BufferPool> pool_;
  uint64_t next_number_ = 1;
};

}  // namespace trunkline::transport::inprocess
