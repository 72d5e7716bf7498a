#pragma once

// The keys of the placement store in etcd, and what all of them say together.
// Pure.

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/placement_store.h"

namespace trunkline::coordinator {

using KeyValues = std::map<std::string, std::string>;

// Numbers in keys have 20 digits, so that keys sort like numbers.
class EtcdKeys {
 public:
  // prefix: "/trunkline". All keys begin with it and a slash.
  explicit EtcdKeys(const std::string& prefix) : prefix_(prefix + "/") {}

  const std::string& prefix() const { return prefix_; }
  std::string leader() const { return prefix_ + "leader"; }
  std::string schema() const { return prefix_ + "schema"; }
  std::string epoch() const { return prefix_ + "epoch"; }
  std::string commit() const { return prefix_ + "commit"; }
  std::string cluster() const { return prefix_ + "cluster"; }
  std::string pending() const { return prefix_ + "pending"; }
  std::string pending_batch(uint64_t index) const;
  std::string worker(WorkerId id) const;
  std::string placement(PlacementVersion version) const;
  std::string map(PlacementVersion version) const;
  std::string history(uint64_t sequence) const;

  void ErasePending(KeyValues* records) const;

 private:
  std::string Numbered(const char* kind, uint64_t number) const;

  const std::string prefix_;
};

// The contents without the epoch. DATA_LOSS names the key that can not be
// read, and a key that has no place here.
absl::StatusOr<StoreContents> ContentsFrom(const EtcdKeys& keys,
                                           const KeyValues& records);

}  // namespace trunkline::coordinator
