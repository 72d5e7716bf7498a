#pragma once

// Which other live expert workers hold which experts, as the coordinator's view
// says. Thread-safe.

#include <mutex>
#include <string>
#include <vector>

#include "common/ids.h"
#include "control/cluster_view.h"
#include "expert_worker/expert_key.h"

namespace trunkline::expert {

struct Peer {
  WorkerId worker;
  std::string name;
  std::string data_address;
};

class PeerDirectory {
 public:
  // self: not a peer of its own.
  void Update(const control::ClusterView& view, WorkerId self);
  uint64_t cluster_id() const;
  // Alive, and READY for a version that places the expert on them; ascending by
  // id from a start that differs from expert to expert, so that one worker is
  // not asked for everything.
  std::vector<Peer> HoldersOf(ExpertKey key) const;

 private:
  mutable std::mutex mutex_;
  control::ClusterView view_;  // by mutex_
  WorkerId self_;              // by mutex_
};

}  // namespace trunkline::expert
