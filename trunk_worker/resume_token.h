#pragma once

// What a stream's client holds to have it go on elsewhere: everything that
// decides the remaining text but the prompt and the delivered token ids, which
// the client has and sends beside it, and which stand here as digests. Opaque
// to clients, versioned, at most kResumeTokenBytesMax long whatever the
// request, and closed by a digest over all of it.
//
// The digest is against damage and mix-ups, not against malice: a token that
// somebody makes up asks for nothing that a plain request could not ask for,
// and every field is checked as a request's is.
//
// Pure values. What a token does not hold follows from what it does: the draws
// of a sampler are a function of (seed, output position), and the state of the
// text (held back stop strings, unfinished characters) of the delivered ids.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "trunk_worker/generation_request.h"
#include "trunk_worker/running_digest.h"
#include "trunk_worker/sampler.h"

namespace trunkline::trunk {

inline constexpr size_t kResumeTokenBytesMax = 512;

// Of token ids, one after the other.
class IdDigest {
 public:
  void Add(int32_t id);
  void Add(std::span<const int32_t> ids);
  const Digest& digest() const { return running_.digest(); }

 private:
  RunningDigest running_;
};

// Of bytes, piece by piece; how they are cut does not matter.
uint64_t TextDigest(uint64_t so_far, absl::string_view text);
// Of the stop strings and of the ids in the order given.
uint64_t StopDigest(std::span<const std::string> stops);

struct ResumeToken {
  // What serves it: any other gives other bits.
  std::string model_digest;    // at most 128 bytes
  std::string numerics_class;  // at most 128 bytes; NumericsOf
  // The request, defaults filled in.
  uint32_t prompt_tokens = 0;
  Digest prompt{};
  SamplingParams sampling;
  uint32_t max_tokens = 0;
  uint64_t stop_strings = 0;  // StopDigest
  Digest stop_token_ids{};    // IdDigest
  uint8_t logprobs = 0;
  bool prompt_logprobs = false;
  bool include_special_tokens = false;
  // What was delivered.
  uint32_t output_tokens = 0;
  Digest output{};
  uint64_t text = 0;  // TextDigest
  // Times spent so far, in microseconds.
  uint64_t queued_us = 0, prefill_us = 0, decode_us = 0;
};

std::string SerializeResumeToken(const ResumeToken& token);
// INVALID_ARGUMENT naming what is wrong: too long, an unknown version, cut
// short, damaged, a field out of range. What is parsed serializes to the same
// bytes.
absl::StatusOr<ResumeToken> ParseResumeToken(absl::string_view bytes);

// Follows what one stream delivers and makes its tokens. Not thread-safe.
class ResumeTracker {
 public:
  // request: as the engine gets it, `delivered` and `spent` included.
  ResumeTracker(const GenerationRequest& request, std::string model_digest,
                std::string numerics_class);
  // Text that a resumed stream's earlier ones delivered.
  void Delivered(const Output& output);
  uint32_t output_tokens() const { return token_.output_tokens; }
  std::string Token() const { return SerializeResumeToken(token_); }

 private:
  ResumeToken token_;
  IdDigest output_;
};

}  // namespace trunkline::trunk
