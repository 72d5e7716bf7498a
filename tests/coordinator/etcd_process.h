#pragma once

// A real etcd for tests: its data in a folder that goes away, its ports free
// ones of loopback, the process killed with the object.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/etcd_client.h"
#include "tests/integration/child_process.h"

namespace trunkline::testing {

class EtcdProcess {
 public:
  // members: 1, or a cluster of 3. UNAVAILABLE with etcd's log when it does not
  // come up.
  static absl::StatusOr<std::unique_ptr<EtcdProcess>> Start(int members = 1);

  const std::vector<std::string>& endpoints() const { return endpoints_; }
  std::string StoreFlag(const std::string& prefix) const;
  ChildProcess& member(int i = 0) { return *members_[static_cast<size_t>(i)]; }
  coordinator::EtcdClient& client() { return *client_; }
  // Of one key; empty when there is none.
  std::string Get(const std::string& key);
  absl::Status Put(const std::string& key, const std::string& value);
  absl::Status Delete(const std::string& key);
  // Throws all history away.
  absl::Status Compact();
  std::string Logs() const;

 private:
  EtcdProcess() = default;
  absl::Status StartMembers(int members);

  TempDir dir_;
  std::vector<std::string> endpoints_;
  std::vector<std::unique_ptr<ChildProcess>> members_;
  std::unique_ptr<coordinator::EtcdClient> client_;
};

// The lead as an election would give it, taken from whoever has it.
absl::StatusOr<int64_t> TakeLead(coordinator::EtcdClient& client,
                                 const std::string& key);

}  // namespace trunkline::testing
