#include "trunk_worker/route_recorder.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "trunk_worker/step_plan.h"

namespace trunkline::trunk {
namespace {

// The standard library's clocks overflow on an infinite wait.
constexpr absl::Duration kLongestWait = absl::Hours(24);

void SetCounters(const std::vector<LayerRouteCounts>& counters,
                 RouteTotals RecordedLayerTotals::*field,
                 RecordingTrailer* trailer) {
  for (RecordedLayerTotals& layer : trailer->layers) {
    for (const LayerRouteCounts& c : counters) {
      if (c.layer == layer.layer) layer.*field = {c.selected, c.executed};
    }
  }
}

}  // namespace

Recording::Recording(uint64_t id, Options options, const Clock& clock)
    : id_(id),
      options_(std::move(options)),
      clock_(clock),
      started_(clock.Now()) {
  for (LayerIndex layer : options_.layers) {
    RecordedLayerTotals totals;
    totals.layer = layer;
    trailer_.layers.push_back(totals);
  }
}

RecordedLayerTotals* Recording::Find(LayerIndex layer) {
  const auto at =
      std::find_if(trailer_.layers.begin(), trailer_.layers.end(),
                   [&](const auto& totals) { return totals.layer == layer; });
  return at == trailer_.layers.end() ? nullptr : &*at;
}

bool Recording::Take(absl::Time until, std::vector<CapturedLayer>* captured) {
  captured->clear();
  std::unique_lock lock(mutex_);
  const absl::Duration wait =
      std::clamp(until - clock_.Now(), absl::ZeroDuration(), kLongestWait);
  changed_.wait_for(lock, absl::ToChronoNanoseconds(wait),
                    [&] { return !queue_.empty() || ended_; });
  captured->assign(std::make_move_iterator(queue_.begin()),
                   std::make_move_iterator(queue_.end()));
  queue_.clear();
  queue_bytes_ = 0;
  return !captured->empty() || !ended_;
}

RecordingTrailer Recording::Trailer() const {
  std::lock_guard lock(mutex_);
  return trailer_;
}

void Recording::Add(CapturedLayer captured) {
  const int64_t bytes = captured.bytes();
  RouteTotals routes;
  routes.selected = static_cast<uint64_t>(captured.routes.size());
  if (captured.completed) {
    routes.executed = static_cast<uint64_t>(
        std::count(captured.routes.fate.begin(), captured.routes.fate.end(),
                   routing::RouteFate::kAccepted));
  }
  {
    std::lock_guard lock(mutex_);
    RecordedLayerTotals& totals = *Find(captured.layer);
    totals.routes.selected += routes.selected;
    totals.routes.executed += routes.executed;
    if (queue_bytes_ + bytes > options_.buffer_bytes) {
      ++totals.records_left_out;
      totals.left_out.selected += routes.selected;
      totals.left_out.executed += routes.executed;
      return;
    }
    ++totals.records;
    queue_bytes_ += bytes;
    queue_.push_back(std::move(captured));
  }
  changed_.notify_one();
}

void Recording::Begin(const std::vector<LayerRouteCounts>& counters) {
  std::lock_guard lock(mutex_);
  if (std::exchange(begun_, true)) return;
  SetCounters(counters, &RecordedLayerTotals::at_begin, &trailer_);
}

void Recording::End(RecordingEnd end,
                    const std::vector<LayerRouteCounts>& counters) {
  Begin(counters);  // nothing happened in between when it has not begun
  {
    std::lock_guard lock(mutex_);
    SetCounters(counters, &RecordedLayerTotals::at_end, &trailer_);
    for (RecordedLayerTotals& layer : trailer_.layers)
      layer.has_counters = true;
    trailer_.end = end;
    trailer_.seconds = absl::ToDoubleSeconds(clock_.Now() - started_);
    ended_ = true;
  }
  changed_.notify_one();
}

RouteRecorder::RouteRecorder(Counters counters)
    : counters_(std::move(counters)), clock_(Clock::Monotonic()) {}

absl::StatusOr<std::shared_ptr<Recording>> RouteRecorder::Start(
    Recording::Options options) {
  std::lock_guard lock(mutex_);
  if (closed_) return absl::UnavailableError("the server is shutting down");
  if (recording_ != nullptr)
    return absl::ResourceExhaustedError(absl::StrCat(
        "recording ", recording_->id(), " runs; there is one at a time"));
  // Not make_shared: the constructor is the recorder's alone.
  recording_ = std::shared_ptr<Recording>(
      new Recording(next_id_++, std::move(options), clock_));
  stop_asked_ = false;
  if (!in_step_) recording_->Begin(counters_());
  return recording_;
}

bool RouteRecorder::Stop(uint64_t id, RecordingEnd end) {
  std::lock_guard lock(mutex_);
  if (recording_ == nullptr || recording_->id() != id) return false;
  if (!in_step_) {
    Finish(end);
  } else if (!std::exchange(stop_asked_, true)) {
    stop_reason_ = end;
  }
  return true;
}

void RouteRecorder::StopForGood() {
  uint64_t id = 0;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    if (recording_ != nullptr) id = recording_->id();
  }
  Stop(id, RecordingEnd::kServerStopped);
}

void RouteRecorder::Finish(RecordingEnd end) {
  recording_->End(end, counters_());
  recording_ = nullptr;
  stop_asked_ = false;
}

LayerObserver* RouteRecorder::BeginStep(const StepPlan& plan,
                                        PlacementVersion version) {
  {
    std::lock_guard lock(mutex_);
    in_step_ = true;
    if (recording_ == nullptr) return nullptr;
    current_ = recording_;
  }
  step_.Take(plan, version);
  return this;
}

void RouteRecorder::EndStep() {
  std::lock_guard lock(mutex_);
  in_step_ = false;
  current_ = nullptr;
  if (recording_ == nullptr) return;
  // One that was started during the step begins here.
  recording_->Begin(counters_());
  if (stop_asked_) Finish(stop_reason_);
}

bool RouteRecorder::Wants(LayerIndex layer) {
  const std::vector<LayerIndex>& layers = current_->options().layers;
  return std::binary_search(layers.begin(), layers.end(), layer);
}

absl::Status RouteRecorder::OnLayer(const ObservedLayer& layer) {
  current_->Add(CaptureLayer(layer, step_));
  return absl::OkStatus();
}

}  // namespace trunkline::trunk
