#pragma once

// The trunk's part of the accuracy gate: a fixed prompt, generated through the
// engine like any other request after each activation, and a digest of every
// token and every logit of it. The coordinator compares (coordinator/
// accuracy_gate.h). No thread of its own: whoever calls Look drives it.
//
// Only experts that the prompt's rows are routed to are seen. The prompt is
// pseudo-random so that they are most: with 128 rows, top 6 of 128, an expert
// of a layer is missed with a chance of 1 in 450.

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "common/ids.h"
#include "control/coordinator_client.h"
#include "trunk_worker/generation_request.h"

namespace trunkline::trunk {

class Canary {
 public:
  struct Options {
    int64_t prompt_tokens = 128;  // 0: never runs
    int64_t output_tokens = 8;
    int64_t vocab_size = 0;
    std::string numerics;  // NumericsOf: only equal ones compare
    // A run that has not ended by then is begun again.
    absl::Duration time_max = absl::Seconds(60);
    absl::Duration between_attempts = absl::Seconds(1);
    // The engine: its clock, and how a request begins (engine.h). It ends its
    // requests before this object goes.
    std::function<absl::Time()> now;
    std::function<absl::Status(GenerationRequest, OutputSink)> start;
    // From the engine's thread: a new result is there; an attempt failed.
    std::function<void()> on_result;
    std::function<void(const absl::Status&)> on_failure;
  };

  explicit Canary(Options options);

  // Any thread. Begins a run when `active` has no result and none is under way.
  void Look(PlacementVersion active);
  // The newest.
  std::optional<control::CanaryResult> result() const;

 private:
  struct Run;
  void OnEnd(const Run& run, const absl::Status& status);

  const Options options_;
  mutable std::mutex mutex_;
  bool under_way_ = false;
  absl::Time next_attempt_ = absl::InfinitePast();
  std::optional<control::CanaryResult> result_;
};

}  // namespace trunkline::trunk
