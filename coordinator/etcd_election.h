#pragma once

// Which of several coordinators leads: the one whose lease holds the leader
// key in etcd. One thread campaigns and watches the key, one keeps the lease.
// A leader that can not renew in time stops leading by its own clock before
// etcd gives the key to another, whatever became of its connection.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/etcd_client.h"
#include "coordinator/placement_store.h"
#include "coordinator/store_etcd.h"

namespace trunkline::coordinator {

class EtcdElection {
 public:
  struct Options {
    std::vector<std::string> endpoints;
    std::string prefix;
    std::string address;  // the leader key's value: where others reach us
    absl::Duration lease = absl::Seconds(2);  // whole seconds
    uint64_t new_cluster_id = 0;
  };
  // Called on the election's thread, one at a time.
  struct Callbacks {
    // This coordinator leads with this store until on_following. An error ends
    // the term.
    std::function<absl::Status(std::unique_ptr<PlacementStore>)> on_elected;
    // It does not lead. leader: whose address the key holds, empty when nobody
    // does or that is not known; why: for people. Also called when only they
    // have changed.
    std::function<void(const std::string& leader, const std::string& why)>
        on_following;
  };

  EtcdElection(const Options& options, Callbacks callbacks);
  ~EtcdElection();  // Stop
  EtcdElection(const EtcdElection&) = delete;
  EtcdElection& operator=(const EtcdElection&) = delete;

  void Start();
  // Gives the lead up at once, for others to take. Idempotent; not from a
  // callback.
  void Stop();
  // The term is over: the store has refused a write. From any thread.
  void Resign();
  // This coordinator leads for certain before this moment of
  // Clock::Monotonic(); the infinite past when it follows. From any thread.
  absl::Time leads_until() const {
    return absl::FromUnixNanos(lease_end_ns_.load());
  }

 private:
  struct Seen {
    std::string leader;
    int64_t create_revision = 0;  // 0: no such key
    int64_t revision = 0;         // of etcd as a whole
  };

  void Run();
  absl::Status RunOnce();
  absl::StatusOr<Seen> Look();
  absl::Status AwaitVacancy(const Seen& seen);
  absl::StatusOr<Seen> Campaign(int64_t lease);
  absl::Status Lead(int64_t lease, const Seen& mine);
  void AwaitEnd(const Seen& mine);
  void KeepLease(int64_t lease);
  bool Over();
  bool Sleep(absl::Duration wait);  // false: stop
  void SetLeaseEnd(absl::Time end) { lease_end_ns_ = absl::ToUnixNanos(end); }
  void SayFollowing(const std::string& leader, const std::string& why);

  const Options options_;
  const Callbacks callbacks_;
  const std::string key_;
  // Calls on the lease and the key; watches; the store's own calls, which take
  // longer.
  EtcdClient client_, watcher_;
  const std::shared_ptr<EtcdClient> store_client_;
  std::atomic<int64_t> lease_end_ns_{absl::ToUnixNanos(absl::InfinitePast())};
  std::thread thread_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;   // by mutex_
  bool resigned_ = false;   // by mutex_, of this term
  bool term_over_ = false;  // by mutex_, for the lease's keeper
  std::string said_;        // election thread only
};

}  // namespace trunkline::coordinator
