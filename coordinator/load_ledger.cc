#include "coordinator/load_ledger.h"

#include <algorithm>
#include <cmath>

namespace trunkline::coordinator {

void LoadLedger::Add(const std::vector<control::ExpertLoadReport>& loads,
                     absl::Time now) {
  if (loads.empty()) return;
  if (!averages_.empty() && now > updated_) {
    const double keep =
        std::exp2(-absl::FDivDuration(now - updated_, half_life_));
    for (auto& [layer, average] : averages_) {
      for (double& rows : average) rows *= keep;
    }
  }
  updated_ = now;
  for (const control::ExpertLoadReport& load : loads) {
    std::vector<double>& average = averages_[load.layer];
    average.resize(std::max(average.size(), load.executed.size()));
    for (size_t e = 0; e < load.executed.size(); ++e) {
      average[e] += static_cast<double>(load.executed[e]);
    }
    if (!recording_) continue;
    control::ExpertLoadReport& count = counts_[load.layer];
    count.layer = load.layer;
    count.selected.resize(
        std::max(count.selected.size(), load.selected.size()));
    count.executed.resize(
        std::max(count.executed.size(), load.executed.size()));
    for (size_t e = 0; e < load.selected.size(); ++e) {
      count.selected[e] += load.selected[e];
    }
    for (size_t e = 0; e < load.executed.size(); ++e) {
      count.executed[e] += load.executed[e];
    }
  }
}

std::vector<placement::LayerLoad> LoadLedger::Averages() const {
  std::vector<placement::LayerLoad> loads;
  for (const auto& [layer, average] : averages_) {
    loads.push_back({.layer = layer, .load = average});
  }
  return loads;
}

void LoadLedger::StartRecording(absl::Time now) {
  counts_.clear();
  recording_ = true;
  record_began_ = now;
  recorded_ = absl::ZeroDuration();
}

void LoadLedger::StopRecording(absl::Time now) {
  if (recording_) recorded_ = now - record_began_;
  recording_ = false;
}

LoadLedger::Recording LoadLedger::Recorded(absl::Time now) const {
  Recording recording;
  recording.running = recording_;
  recording.length = recording_ ? now - record_began_ : recorded_;
  for (const auto& [layer, count] : counts_) recording.counts.push_back(count);
  return recording;
}

}  // namespace trunkline::coordinator
