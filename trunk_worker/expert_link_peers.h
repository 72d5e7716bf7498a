#pragma once

// The trunk's connections to expert workers: who is dialled, who is reachable,
// and who may be planned on. Follows the coordinator's view and the transport's
// events; knows no step and no route. Engine thread only.
//
// Membership comes from the view alone. What this table observes (a connection
// that ended, a worker that lied) only decides who is used now.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "control/cluster_view.h"
#include "placement/placement_map.h"
#include "transport/transport.h"

namespace trunkline::trunk {

class ExpertPeers {
 public:
  struct Options {
    // Between attempts to connect; doubles from the first to the most.
    absl::Duration backoff_first = absl::Milliseconds(50);
    absl::Duration backoff_most = absl::Seconds(2);
    // How long a worker that refused a version is not asked again for it,
    // unless a newer view comes first.
    absl::Duration refusal_memory = absl::Seconds(1);
  };

  // A connection that was in use and is no more.
  struct Loss {
    WorkerId worker;
    std::string why;  // names the worker and its address
  };

  ExpertPeers(transport::Transport* transport, const Options& options)
      : transport_(transport), options_(options) {}

  // Dials new workers, hangs up on those that are gone or have moved.
  std::vector<Loss> ApplyView(const control::ClusterView& view, absl::Time now);
  // Another cluster: nothing that is connected is of it.
  std::vector<Loss> Clear(const std::string& why);
  // Connects whose time has come.
  void Dial(absl::Time now);
  absl::Time next_dial() const;

  void OnConnected(transport::ConnectionId connection);
  std::optional<Loss> OnDown(transport::ConnectionId connection,
                             const absl::Status& status, absl::Time now);
  // Hangs up on a worker that can't be worked with.
  std::optional<Loss> HangUp(WorkerId worker, const std::string& why,
                             absl::Time now);
  // It answered as asked: the next lost connection is dialled again at once.
  void OnGoodAnswer(WorkerId worker);
  void OnVersionRefused(WorkerId worker, PlacementVersion version,
                        absl::Time now);

  std::optional<WorkerId> WorkerOf(transport::ConnectionId connection) const;
  // Nothing while the worker is not up.
  std::optional<transport::ConnectionId> ConnectionOf(WorkerId worker) const;

  // Workers to plan this layer on, ascending: those that the view calls alive
  // and ready for the version if they suffice; else also those that are
  // connected and of which nothing is known, since a coordinator that restarts
  // knows nobody for a moment.
  std::vector<WorkerId> LiveFor(const placement::LayerPlacement& layer,
                                PlacementVersion version, absl::Time now) const;
  // OK when every expert of the placement has a worker to plan on; else
  // UNAVAILABLE naming the first expert that has none, and its workers.
  absl::Status CheckReachable(const placement::PlacementMap& map) const;

  // "'ew-1' (worker 3) at ucx://10.0.0.7:4000: connected".
  std::string Describe(WorkerId worker) const;
  std::string DescribeOwners(
      const std::vector<placement::Replica>& replicas) const;
  // Grows whenever CheckReachable could say something new.
  uint64_t generation() const { return generation_; }

 private:
  enum class State : uint8_t { kDown, kConnecting, kUp };
  struct Peer {
    std::string name;
    std::string address;
    uint64_t incarnation = 0;
    bool alive = false;                                        // by the view
    std::map<PlacementVersion, control::ShardState> versions;  // by the view
    State state = State::kDown;
    transport::ConnectionId connection;
    absl::Time next_dial = absl::InfinitePast();
    absl::Duration backoff;
    std::string last_error;
    std::map<PlacementVersion, absl::Time> refused;  // until when
  };

  bool Usable(const Peer& peer, PlacementVersion version) const;
  bool Preferred(const Peer& peer, PlacementVersion version) const;
  std::optional<Loss> TakeDown(WorkerId worker, Peer& peer,
                               const std::string& why);
  void Postpone(Peer& peer, absl::Time now);

  transport::Transport* const transport_;
  const Options options_;
  std::map<WorkerId, Peer> peers_;
  absl::flat_hash_map<transport::ConnectionId, WorkerId> workers_;
  uint64_t generation_ = 0;
};

}  // namespace trunkline::trunk
