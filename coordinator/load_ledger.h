#pragma once

// What the trunks report about expert use: a moving average that balancing
// goes by, and exact counts for whoever records them. Pure; not stored, since
// a restarted coordinator learns it anew within minutes.

#include <cstdint>
#include <map>
#include <vector>

#include "absl/time/time.h"
#include "control/coordinator_client.h"
#include "placement/load_prediction.h"

namespace trunkline::coordinator {

class LoadLedger {
 public:
  // half_life: after so long without rows a load counts half.
  explicit LoadLedger(absl::Duration half_life) : half_life_(half_life) {}

  void Add(const std::vector<control::ExpertLoadReport>& loads, absl::Time now);

  // Executed rows, by the moving average. Layers without rows are absent.
  std::vector<placement::LayerLoad> Averages() const;
  bool empty() const { return averages_.empty(); }

  // Exact counts between start and stop.
  void StartRecording(absl::Time now);
  void StopRecording(absl::Time now);
  struct Recording {
    bool running = false;
    absl::Duration length;                          // so far
    std::vector<control::ExpertLoadReport> counts;  // ascending by layer
  };
  Recording Recorded(absl::Time now) const;

 private:
  const absl::Duration half_life_;
  // All averages are as of updated_.
  std::map<LayerIndex, std::vector<double>> averages_;
  absl::Time updated_ = absl::InfinitePast();
  bool recording_ = false;
  absl::Time record_began_;
  absl::Duration recorded_;
  std::map<LayerIndex, control::ExpertLoadReport> counts_;
};

}  // namespace trunkline::coordinator
