#pragma once

// From one row of logits to one token. Pure: a function of (logits, parameters,
// history, seed, output position), so neither batch neighbours nor a restart
// change what a sequence draws.
//
// Order, as vLLM has it: repetition and presence penalties, temperature, min-p
// (relative to the best token), top-k, top-p over what is left, then one draw.
// Temperature 0 is greedy: the largest penalised logit. Equal values: the lower
// id comes first everywhere. Log-probabilities are those of the unmodified
// distribution. exp and log are the kernels' own, sums are doubles taken in a
// fixed order.

#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace trunkline::trunk {

struct SamplingParams {
  float temperature = 0.0f;         // >= 0; 0: greedy
  int32_t top_k = 0;                // >= 0; 0: off
  float top_p = 1.0f;               // (0, 1]; 1: off
  float min_p = 0.0f;               // [0, 1); 0: off
  float repetition_penalty = 1.0f;  // > 0; 1: off; prompt and output tokens
  float presence_penalty = 0.0f;    // [-2, 2]; 0: off; output tokens
  uint64_t seed = 0;
};
// INVALID_ARGUMENT naming the field ("sampling.top_p") and its value.
absl::Status ValidateSampling(const SamplingParams& params);

// Which tokens a sequence has seen, for the penalties.
class TokenHistory {
 public:
  void AddPrompt(int32_t id) { seen_[id].prompt = true; }
  void AddOutput(int32_t id) { seen_[id].output = true; }
  // Changes logits[id] of seen tokens only; each once, so order is no matter.
  void Penalise(const SamplingParams& params, std::span<float> logits) const;

 private:
  struct Seen {
    bool prompt = false;
    bool output = false;
  };
  absl::flat_hash_map<int32_t, Seen> seen_;
};

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0.0f;
};
struct TokenLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;  // best first
};

struct SampledToken {
  int32_t id = 0;
  TokenLogprobs logprobs;  // filled when asked for
};

struct SampleSpec {
  const SamplingParams* params = nullptr;
  const TokenHistory* history = nullptr;
  uint64_t output_position = 0;  // 0 for the first token of the completion
  int logprobs = 0;              // 0: none; n: the chosen and the n best
};

// Memory reused between calls; one per thread.
struct SamplerScratch {
  struct Candidate {
    float weight = 0.0f;  // exp((logit - best) / temperature)
    int32_t id = 0;
  };
  std::vector<float> logits;
  std::vector<Candidate> candidates;
  std::vector<int32_t> order;
};

// INTERNAL naming the id and value when a logit is not finite.
absl::Status CheckLogits(std::span<const float> logits);

absl::StatusOr<SampledToken> SampleToken(std::span<const float> logits,
                                         const SampleSpec& spec,
                                         SamplerScratch* scratch);

// The log-probability of `id` and of the `top` best tokens. Finite logits only.
TokenLogprobs LogprobsOf(std::span<const float> logits, int32_t id, int top,
                         SamplerScratch* scratch);

}  // namespace trunkline::trunk
