#pragma once

// Captures routed layers from live serving. While nobody records, a step costs
// one uncontended lock and a layer one look at a null pointer. While somebody
// does, the engine's thread copies what it has in its hands into a bounded
// queue; everything else is done by whoever takes it out.
//
// A recording begins and ends between two steps, where the per-layer counters
// stand still, so what it saw is exactly by how much they rose.
//
// Thread safety: BeginStep and EndStep on the engine's thread, the rest on any.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "trunk_worker/captured_layer.h"
#include "trunk_worker/layer_observer.h"
#include "trunk_worker/layer_runner.h"
#include "trunk_worker/route_record.h"

namespace trunkline::trunk {

// One recording. The recorder fills it, its reader takes from it.
class Recording {
 public:
  struct Options {
    std::vector<LayerIndex> layers;  // ascending
    int64_t buffer_bytes = int64_t{64} << 20;
  };

  // Waits until something was captured, the recording has ended or `until` has
  // come. False: ended, and everything has been taken.
  bool Take(absl::Time until, std::vector<CapturedLayer>* captured);
  // Valid once Take has said false. Records in the file are as the reader says.
  RecordingTrailer Trailer() const;

  uint64_t id() const { return id_; }
  const Options& options() const { return options_; }

 private:
  friend class RouteRecorder;
  Recording(uint64_t id, Options options, const Clock& clock);
  RecordedLayerTotals* Find(LayerIndex layer);
  void Add(CapturedLayer captured);
  void Begin(const std::vector<LayerRouteCounts>& counters);
  void End(RecordingEnd end, const std::vector<LayerRouteCounts>& counters);

  const uint64_t id_;
  const Options options_;
  const Clock& clock_;
  const absl::Time started_;

  mutable std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  std::deque<CapturedLayer> queue_;
  int64_t queue_bytes_ = 0;
  bool begun_ = false, ended_ = false;
  RecordingTrailer trailer_;
};

class RouteRecorder final : public StepObserver, private LayerObserver {
 public:
  // The per-layer counters; called between steps.
  using Counters = std::function<std::vector<LayerRouteCounts>()>;
  explicit RouteRecorder(Counters counters);

  // RESOURCE_EXHAUSTED while another recording runs, UNAVAILABLE after
  // StopForGood.
  absl::StatusOr<std::shared_ptr<Recording>> Start(Recording::Options options);
  // Ends the recording at once, or with the step that is under way. False when
  // no such recording runs.
  bool Stop(uint64_t id, RecordingEnd end);
  void StopForGood();

  LayerObserver* BeginStep(const StepPlan& plan,
                           PlacementVersion version) override;
  void EndStep() override;

 private:
  bool Wants(LayerIndex layer) override;
  absl::Status OnLayer(const ObservedLayer& layer) override;
  void Finish(RecordingEnd end);  // with mutex_

  const Counters counters_;
  const Clock& clock_;

  // The engine thread's own.
  std::shared_ptr<Recording> current_;  // sees the step under way
  StepRows step_;

  std::mutex mutex_;  // guards the rest
  std::shared_ptr<Recording> recording_;
  bool in_step_ = false;
  bool stop_asked_ = false;
  RecordingEnd stop_reason_ = RecordingEnd::kStopped;
  bool closed_ = false;
  uint64_t next_id_ = 1;
};

}  // namespace trunkline::trunk
