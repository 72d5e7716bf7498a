#include "trunk_worker/canary.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/random.h"
#include "trunk_worker/running_digest.h"

namespace trunkline::trunk {

// Touched by the engine's thread only, until the request has ended.
struct Canary::Run {
  RunningDigest digest;
  PlacementVersion version;  // of its first step
  bool one_version = true;
  // A step that failed makes the engine compute rows again: then this is no
  // single answer.
  int64_t next_position = 0;
  bool in_order = true;

  void OnLogits(PlacementVersion step_version, int64_t position,
                std::span<const float> logits) {
    if (!version.valid()) version = step_version;
    one_version = one_version && version == step_version;
    in_order = in_order && position == next_position++;
    digest.Add(logits.data(), logits.size_bytes());
  }
};

Canary::Canary(Options options) : options_(std::move(options)) {}

void Canary::Look(PlacementVersion active) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (options_.prompt_tokens == 0 || !active.valid() || under_way_) return;
  if (result_.has_value() && result_->version == active) return;
  const absl::Time now = options_.now();
  if (now < next_attempt_) return;
  next_attempt_ = now + options_.between_attempts;

  auto run = std::make_shared<Run>();
  GenerationRequest request;
  request.name = "canary";
  for (int64_t i = 0; i < options_.prompt_tokens; ++i) {
    request.prompt.push_back(
        static_cast<int32_t>(SplitMix64(static_cast<uint64_t>(i)) %
                             static_cast<uint64_t>(options_.vocab_size)));
  }
  request.max_tokens = options_.output_tokens;
  request.wait_for_capacity = true;
  request.background = true;
  request.deadline = now + options_.time_max;
  request.on_logits = [run](PlacementVersion version, int64_t position,
                            std::span<const float> logits) {
    run->OnLogits(version, position, logits);
  };
  const absl::Status started =
      options_.start(std::move(request), [this, run](const Output& output) {
        for (const int32_t id : output.token_ids)
          run->digest.Add(&id, sizeof(id));
        if (output.finished) OnEnd(*run, output.status);
      });
  under_way_ = started.ok();
}

void Canary::OnEnd(const Run& run, const absl::Status& status) {
  absl::Status failure = status;
  if (failure.ok() && !(run.one_version && run.in_order)) {
    failure = absl::AbortedError(
        "the placement changed, or a step failed, while it ran");
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    under_way_ = false;
    if (failure.ok()) {
      control::CanaryResult result;
      result.version = run.version;
      result.digest = run.digest.Hex();
      result.prompt =
          absl::StrCat(options_.numerics, "/", options_.prompt_tokens, "+",
                       options_.output_tokens);
      if (result_.has_value()) {
        result.before_version = result_->version;
        result.before_digest = result_->digest;
      }
      result_ = std::move(result);
    }
  }
  if (!failure.ok()) {
    if (options_.on_failure) options_.on_failure(failure);
  } else if (options_.on_result) {
    options_.on_result();
  }
}

std::optional<control::CanaryResult> Canary::result() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return result_;
}

}  // namespace trunkline::trunk
