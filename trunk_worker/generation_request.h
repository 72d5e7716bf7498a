#pragma once

// A request and what comes back, as plain values: wire types stop at the
// service.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "trunk_worker/sampler.h"

namespace trunkline::trunk {

struct GenerationRequest {
  RequestId id;      // unique among live requests
  std::string name;  // the caller's request_id, for logs
  std::vector<int32_t> prompt;
  SamplingParams sampling;
  int64_t max_tokens = 0;  // 0: as many as the sequence has room for
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;  // all of them, the model's own too
  int logprobs = 0;
  bool prompt_logprobs = false;
  bool include_special_tokens = false;
  bool wait_for_capacity = false;
  absl::Time deadline = absl::InfiniteFuture();  // on the engine's clock
};

enum class FinishReason : uint8_t { kNone, kStop, kLength };

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;
  absl::Duration queued;   // submission to admission
  absl::Duration prefill;  // admission to the first token
  absl::Duration decode;   // first to last token
  // Of all its rows in all moe layers; dropped by fixed capacity.
  uint64_t routes_selected = 0;
  uint64_t routes_dropped = 0;
};

// What one step, or the end, made for one request. The last one has finished
// set; an error may come at any time and is the last one too.
struct Output {
  RequestId request;
  std::vector<int32_t> token_ids;
  std::string text;
  std::vector<TokenLogprobs> logprobs;         // one per token id, when asked
  std::vector<TokenLogprobs> prompt_logprobs;  // with the first token
  PlacementVersion placement_version;
  bool finished = false;
  absl::Status status;  // of the whole request; meaningful when finished
  FinishReason reason = FinishReason::kNone;
  std::string stop;  // the stop string that ended it, if one did
  Usage usage;       // when finished
};

// Called on the engine's thread: must not block.
using OutputSink = std::function<void(Output)>;

}  // namespace trunkline::trunk
