#include "trunk_worker/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/random.h"
#include "common/status_macros.h"
#include "kernels/scalar_math.h"

namespace trunkline::trunk {
namespace {

using Candidate = SamplerScratch::Candidate;

absl::Status Bad(const char* field, double value, const char* wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat("sampling.", field, " is ", value, "; it must be ", wanted));
}

bool HeavierFirst(const Candidate& a, const Candidate& b) {
  return a.weight != b.weight ? a.weight > b.weight : a.id < b.id;
}

int32_t ArgMax(std::span<const float> logits) {
  int32_t best = 0;
  for (size_t i = 1; i < logits.size(); ++i) {
    if (logits[i] > logits[best]) best = static_cast<int32_t>(i);
  }
  return best;
}

double Total(std::span<const Candidate> candidates) {
  double sum = 0.0;
  for (const Candidate& c : candidates) sum += c.weight;
  return sum;
}

// Sorts the `count` heaviest to the front.
void SortFront(std::vector<Candidate>& candidates, size_t count) {
  if (count < candidates.size()) {
    std::nth_element(candidates.begin(), candidates.begin() + count,
                     candidates.end(), HeavierFirst);
  }
  std::sort(candidates.begin(),
            candidates.begin() + std::min(count, candidates.size()),
            HeavierFirst);
}

// Keeps the fewest heaviest tokens whose share reaches top_p; at least one.
// Sorts no more of the vocabulary than it must.
void KeepTopP(std::vector<Candidate>& candidates, float top_p, bool sorted) {
  const double wanted = Total(candidates) * static_cast<double>(top_p);
  size_t front = sorted ? candidates.size() : 64;
  while (true) {
    if (!sorted) SortFront(candidates, front);
    const size_t end = std::min(front, candidates.size());
    double sum = 0.0;
    for (size_t i = 0; i < end; ++i) {
      sum += candidates[i].weight;
      if (sum >= wanted) {
        candidates.resize(i + 1);
        return;
      }
    }
    if (end == candidates.size()) return;  // rounding kept the sum below
    front *= 8;
  }
}

// The candidates that the filters leave, from penalised logits.
void Filter(std::span<const float> logits, const SamplingParams& params,
            std::vector<Candidate>& candidates) {
  const float best = logits[ArgMax(logits)];
  candidates.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    const float weight = kernels::Exp((logits[i] - best) / params.temperature);
    // The best token weighs exactly 1, so min-p compares with it directly.
    if (weight > 0.0f && weight >= params.min_p) {
      candidates.push_back({weight, static_cast<int32_t>(i)});
    }
  }
  bool sorted = false;
  if (params.top_k > 0) {
    const size_t keep =
        std::min(candidates.size(), static_cast<size_t>(params.top_k));
    SortFront(candidates, keep);
    candidates.resize(keep);
    sorted = true;
  }
  if (params.top_p < 1.0f) KeepTopP(candidates, params.top_p, sorted);
}

int32_t Draw(std::span<const Candidate> candidates, double unit) {
  const double wanted = unit * Total(candidates);
  double sum = 0.0;
  for (const Candidate& c : candidates) {
    sum += c.weight;
    if (sum > wanted) return c.id;
  }
  return candidates.back().id;
}

}  // namespace

absl::Status ValidateSampling(const SamplingParams& p) {
  if (!(p.temperature >= 0.0f) || !std::isfinite(p.temperature))
    return Bad("temperature", p.temperature, "finite and 0 or more");
  if (p.top_k < 0) return Bad("top_k", p.top_k, "0 (off) or more");
  if (!(p.top_p > 0.0f && p.top_p <= 1.0f))
    return Bad("top_p", p.top_p, "above 0 and at most 1");
  if (!(p.min_p >= 0.0f && p.min_p < 1.0f))
    return Bad("min_p", p.min_p, "0 or more and below 1");
  if (!(p.repetition_penalty > 0.0f) || !std::isfinite(p.repetition_penalty))
    return Bad("repetition_penalty", p.repetition_penalty,
               "finite and above 0");
  if (!(p.presence_penalty >= -2.0f && p.presence_penalty <= 2.0f))
    return Bad("presence_penalty", p.presence_penalty, "in [-2, 2]");
  return absl::OkStatus();
}

void TokenHistory::Penalise(const SamplingParams& params,
                            std::span<float> logits) const {
  const bool repetition = params.repetition_penalty != 1.0f;
  const bool presence = params.presence_penalty != 0.0f;
  if (!repetition && !presence) return;
  constexpr float kMax = std::numeric_limits<float>::max();
  for (const auto& [id, seen] : seen_) {
    if (id < 0 || static_cast<size_t>(id) >= logits.size()) continue;
    float& logit = logits[id];
    if (repetition) {
      logit = logit > 0.0f ? logit / params.repetition_penalty
                           : logit * params.repetition_penalty;
    }
    if (presence && seen.output) logit -= params.presence_penalty;
    // An extreme penalty may overflow; the order of tokens stays defined.
    logit = std::clamp(logit, -kMax, kMax);
  }
}

absl::Status CheckLogits(std::span<const float> logits) {
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i])) {
      return absl::InternalError(
          absl::StrCat("the logit of token ", i, " is ", logits[i]));
    }
  }
  return absl::OkStatus();
}

TokenLogprobs LogprobsOf(std::span<const float> logits, int32_t id, int top,
                         SamplerScratch* scratch) {
  const float best = logits[ArgMax(logits)];
  double sum = 0.0;
  for (float logit : logits) sum += kernels::Exp(logit - best);
  const float log_sum = kernels::Log(static_cast<float>(sum));
  auto logprob = [&](int32_t token) {
    return TokenLogprob{token, (logits[token] - best) - log_sum};
  };
  TokenLogprobs result;
  result.chosen = logprob(id);
  if (top <= 0) return result;
  std::vector<int32_t>& order = scratch->order;
  order.resize(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const size_t keep = std::min(order.size(), static_cast<size_t>(top));
  std::partial_sort(order.begin(), order.begin() + keep, order.end(),
                    [&](int32_t a, int32_t b) {
                      return logits[a] != logits[b] ? logits[a] > logits[b]
                                                    : a < b;
                    });
  for (size_t i = 0; i < keep; ++i) result.top.push_back(logprob(order[i]));
  return result;
}

absl::StatusOr<SampledToken> SampleToken(std::span<const float> logits,
                                         const SampleSpec& spec,
                                         SamplerScratch* scratch) {
  if (logits.empty()) return absl::InternalError("a row of logits is empty");
  TL_RETURN_IF_ERROR(CheckLogits(logits));
  scratch->logits.assign(logits.begin(), logits.end());
  if (spec.history != nullptr)
    spec.history->Penalise(*spec.params, scratch->logits);

  SampledToken token;
  if (spec.params->temperature == 0.0f) {
    token.id = ArgMax(scratch->logits);
  } else {
    Filter(scratch->logits, *spec.params, scratch->candidates);
    RandomStream random(spec.params->seed, spec.output_position);
    token.id = Draw(scratch->candidates, random.NextUnit());
  }
  if (spec.logprobs > 0)
    token.logprobs = LogprobsOf(logits, token.id, spec.logprobs, scratch);
  return token;
}

}  // namespace trunkline::trunk
