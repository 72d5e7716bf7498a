#pragma once

// A request and what comes back, as plain values: wire types stop at the
// service.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "trunk_worker/sampler.h"

namespace trunkline::trunk {

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;   // of all streams of a resumed request
  int64_t resumed_tokens = 0;  // of them, delivered by earlier streams
  absl::Duration queued;       // submission to admission
  absl::Duration prefill;      // admission to the first token
  absl::Duration decode;       // first to last token
  // Of all its rows in all moe layers; dropped by fixed capacity.
  uint64_t routes_selected = 0;
  uint64_t routes_dropped = 0;
};

// A row of logits that a step made. Called on the engine's thread.
using LogitSink = std::function<void(PlacementVersion, int64_t position,
                                     std::span<const float>)>;

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
  bool background = false;  // the server's own: its wait fills no queue
  absl::Time deadline = absl::InfiniteFuture();  // on the engine's clock

  // A stream that goes on (resume_token.h): the output ids that the caller has
  // already, the digest of their text, and the times they took. They are
  // computed again as the prompt is, make no output, and count as output.
  std::vector<int32_t> delivered;
  uint64_t delivered_text = 0;
  Usage spent;

  // Set: sees the logits of every position of prompt and output.
  LogitSink on_logits;
};

enum class FinishReason : uint8_t { kNone, kStop, kLength };

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
  Usage usage;       // so far
  // Not zero with a refusal that says when this server may be asked again.
  absl::Duration retry_after;
};

// Called on the engine's thread: must not block.
using OutputSink = std::function<void(Output)>;

}  // namespace trunkline::trunk
