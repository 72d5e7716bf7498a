#pragma once

// Who asks the cluster for text, and compares every token with what the model
// alone would have said.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "sim/network.h"
#include "sim/sim_model.h"
#include "sim/sim_trunk.h"
#include "sim/world.h"

namespace trunkline::sim {

class SimClients {
 public:
  struct Outcomes {
    uint64_t asked = 0, finished = 0, failed = 0, cancelled = 0, cut_off = 0;
    uint64_t resumed = 0;  // streams that went on, maybe on another trunk
    uint64_t tokens = 0;
    std::map<absl::StatusCode, uint64_t> errors;
  };
  // trunks: those that run now. fail: reports a violation.
  SimClients(World* world, const SimModel* model,
             std::function<std::vector<SimTrunk*>()> trunks,
             std::function<void(const std::string&, const std::string&)> fail)
      : world_(world),
        model_(model),
        trunks_(std::move(trunks)),
        fail_(std::move(fail)) {}

  // Asks some trunk, now and again until Stop.
  void Start(absl::Duration pause_most) { Start(pause_most, false); }
  // patient: see AskPatiently.
  void Start(absl::Duration pause_most, bool patient);
  void Stop() { stopped_ = true; }
  // One request to some trunk; false when none runs.
  bool Ask(absl::Duration patience) { return Submit(patience, false); }
  // One that waits for capacity and never changes its mind.
  bool AskPatiently(absl::Duration patience) { return Submit(patience, true); }

  // The trunk's process has ended: its streams break. Clients that follow go on
  // with what they have on a trunk that runs.
  void OnTrunkEnd(Place place);

  size_t waiting() const { return live_.size(); }
  // The longest time in which somebody waited and nobody was told anything,
  // counted from the first token of all.
  absl::Duration longest_silence() const { return longest_silence_; }
  std::string DescribeWaiting() const;
  const Outcomes& outcomes() const { return outcomes_; }

 private:
  struct Request {
    Place trunk = 0;
    trunk::GenerationRequest first;  // as it was asked
    absl::Duration patience;
    std::vector<int32_t> expected, got;
    std::string resume_token;  // of what was got; empty: nothing was
    absl::Time asked;
    bool cancelled = false;
    // Goes on elsewhere when its stream breaks; so often at most.
    int follows = 0;
    bool between = false;  // no stream just now
  };
  SimTrunk::StreamSink SinkOf(uint64_t id);
  void OnOutput(uint64_t id, const trunk::Output& output,
                const std::string& resume_token);
  void OnEnd(uint64_t id, const Request& request, const absl::Status& status);
  // True: the request goes on later.
  bool Follow(uint64_t id, Request* request);
  void GoOn(uint64_t id);
  void AskLater();
  bool Submit(absl::Duration patience, bool patient);

  World* const world_;
  const SimModel* const model_;
  const std::function<std::vector<SimTrunk*>()> trunks_;
  const std::function<void(const std::string&, const std::string&)> fail_;
  absl::Duration pause_most_;
  bool stopped_ = false, patient_ = false;
  uint64_t next_ = 1;
  absl::Time quiet_since_ = absl::InfiniteFuture();
  absl::Duration longest_silence_;
  std::map<uint64_t, Request> live_;
  Outcomes outcomes_;
};

}  // namespace trunkline::sim
