#pragma once

// A worker's side of the control plane: registers, keeps the lease alive,
// follows the view, and starts over by itself when the coordinator restarts. A
// coordinator that is down changes nothing on the data path: the last view
// stays in force.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "control/cluster_view.h"
#include "placement/placement_map.h"

namespace trunkline::control {

struct Registration {
  std::string name;
  Role role = Role::kExpert;
  std::string data_address, api_address, metrics_address;
  std::string model_digest, numerics_class, self_check_digest, failure_domain;
  uint64_t memory_bytes = 0;
  double speed = 1.0;  // expert workers: relative, for balancing
  std::vector<placement::MoeLayerShape> moe_layers;
  // Trunks: what becomes of routes whose expert is full, as the operator wrote
  // it; the same on all of them. Empty: not said.
  std::string admission = {};
  // Which process registers: random, not 0. CoordinatorClient::Start draws one
  // where it is 0. The same process may register as often as it likes.
  uint64_t process = 0;
  // The incarnation of another process whose name this one takes; 0: none. Kept
  // by the session (worker_session.h), not by the caller.
  uint64_t replaces = 0;
};

struct Identity {
  WorkerId worker;
  uint64_t incarnation = 0, epoch = 0, cluster_id = 0;
};

struct ExpertLoadReport {
  LayerIndex layer;
  std::vector<uint64_t> selected, executed;
};

// A trunk's answer to its canary prompt under one placement version.
struct CanaryResult {
  PlacementVersion version;
  std::string digest;  // of all its tokens and logits
  std::string prompt;  // what was asked; only equal ones compare
  // Under an earlier version; invalid and empty when there was none.
  PlacementVersion before_version;
  std::string before_digest;
};

// What goes out with each heartbeat; asked for on the client's thread.
struct Report {
  std::vector<VersionReport> versions;
  // Trunks: the oldest version that a step in flight was planned under; invalid
  // when idle.
  PlacementVersion oldest_in_flight;
  std::vector<ExpertLoadReport> loads;
  bool wants_drain = false;  // hand my experts over: I am going to stop
  ExpertCosts costs;         // expert workers
  std::optional<CanaryResult> canary;  // trunks
  // Trunks: new requests are refused, and none runs or waits.
  bool at_rest = false;
};

class CoordinatorClient {
 public:
  struct Callbacks {
    std::function<void(const Identity&)>
        on_registered;  // first time and after every re-registration
    std::function<void(const ClusterView&)>
        on_view;  // whole view, in increasing (epoch, revision) of one
                  // cluster id. New steps must follow this view once the
                  // callback has returned: the next heartbeat says so, and old
                  // versions retire by it.
    std::function<Report()> make_report;
    // Registration was refused for good (wrong model, wrong numerics class), or
    // another process has taken this name: the process should end. Last
    // callback.
    std::function<void(const absl::Status&)> on_refused;
  };

  // addresses: "host:port", or several with commas between, of which one leads.
  // Returns at once; threads start. Callbacks come from the client's threads,
  // one at a time.
  static std::unique_ptr<CoordinatorClient> Start(const std::string& addresses,
                                                  Registration registration,
                                                  Callbacks callbacks);
  virtual ~CoordinatorClient() = default;
  // Sends a heartbeat now (something to report).
  virtual void ReportNow() = 0;
  // Leaves the cluster in an orderly way and stops the threads, within about a
  // second whatever the coordinator does. Idempotent; not from a callback.
  virtual void Stop() = 0;
};

// One snapshot for a command line tool, from the coordinator that leads.
absl::StatusOr<ClusterView> FetchCluster(const std::string& addresses,
                                         absl::Duration timeout);

}  // namespace trunkline::control
