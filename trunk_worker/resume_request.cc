#include "trunk_worker/resume_request.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "trunk_worker/output_text.h"
#include "trunk_worker/resume_token.h"

namespace trunkline::trunk {
namespace {

template <typename T>
absl::Status Other(const char* field, const T& asked, const T& made_for) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", asked, "; the resume token was made for a ",
                   "request with ", made_for));
}

absl::Status CheckPlace(const ResumeToken& token, const ServedModel& model) {
  const std::string& digest = model.checkpoint->digest();
  if (token.model_digest != digest) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the resume token was made for model digest ", token.model_digest,
        "; this trunk serves ", model.name, ", digest ", digest));
  }
  const std::string numerics = NumericsOf(model);
  if (token.numerics_class != numerics) {
    return absl::FailedPreconditionError(
        absl::StrCat("the resume token was made in numerics class ",
                     token.numerics_class, "; this trunk computes in ",
                     numerics, ", which would go on with other bits"));
  }
  return absl::OkStatus();
}

// What the request says must be what the token says; what it leaves out is the
// token's.
absl::Status TakeSampling(const v1::SamplingParams& wire,
                          const ResumeToken& token, SamplingParams* params) {
  const SamplingParams& made = token.sampling;
  const auto check = [](const char* field, bool given, auto asked, auto has) {
    return given && asked != has ? Other(field, asked, has) : absl::OkStatus();
  };
  TL_RETURN_IF_ERROR(check("sampling.temperature", wire.has_temperature(),
                           wire.temperature(), made.temperature));
  TL_RETURN_IF_ERROR(
      check("sampling.top_k", wire.has_top_k(), wire.top_k(), made.top_k));
  TL_RETURN_IF_ERROR(
      check("sampling.top_p", wire.has_top_p(), wire.top_p(), made.top_p));
  TL_RETURN_IF_ERROR(
      check("sampling.min_p", wire.has_min_p(), wire.min_p(), made.min_p));
  TL_RETURN_IF_ERROR(check("sampling.repetition_penalty",
                           wire.has_repetition_penalty(),
                           wire.repetition_penalty(), made.repetition_penalty));
  TL_RETURN_IF_ERROR(check("sampling.presence_penalty",
                           wire.has_presence_penalty(), wire.presence_penalty(),
                           made.presence_penalty));
  TL_RETURN_IF_ERROR(
      check("sampling.seed", wire.has_seed(), wire.seed(), made.seed));
  *params = made;
  return absl::OkStatus();
}

absl::Status CheckRequest(const v1::GenerateRequest& wire,
                          const ResumeToken& token,
                          const GenerationRequest& request) {
  IdDigest prompt, stop_token_ids;
  prompt.Add(request.prompt);
  if (request.prompt.size() != token.prompt_tokens)
    return Other("the prompt's number of tokens", request.prompt.size(),
                 size_t{token.prompt_tokens});
  if (prompt.digest() != token.prompt) {
    return absl::InvalidArgumentError(
        "the prompt is not the one that the resume token was made for");
  }
  if (wire.max_tokens() != 0 && wire.max_tokens() != token.max_tokens)
    return Other("max_tokens", wire.max_tokens(), token.max_tokens);
  if (StopDigest(request.stop) != token.stop_strings) {
    return absl::InvalidArgumentError(
        "stop is not what the resume token was made for");
  }
  stop_token_ids.Add(request.stop_token_ids);
  if (stop_token_ids.digest() != token.stop_token_ids) {
    return absl::InvalidArgumentError(
        "stop_token_ids or ignore_eos are not what the resume token was made "
        "for");
  }
  if (request.logprobs != token.logprobs)
    return Other("logprobs", request.logprobs, int{token.logprobs});
  if (request.prompt_logprobs != token.prompt_logprobs)
    return Other("prompt_logprobs", int{request.prompt_logprobs},
                 int{token.prompt_logprobs});
  if (request.include_special_tokens != token.include_special_tokens)
    return Other("include_special_tokens", int{request.include_special_tokens},
                 int{token.include_special_tokens});
  return absl::OkStatus();
}

absl::Status CheckDelivered(const v1::ResumePoint& wire,
                            const ResumeToken& token,
                            const ServedModel& model) {
  if (wire.token_ids_size() != static_cast<int64_t>(token.output_tokens)) {
    return absl::InvalidArgumentError(
        absl::StrCat("resume.token_ids has ", wire.token_ids_size(),
                     " ids; the resume token covers ", token.output_tokens));
  }
  const int64_t vocab = model.checkpoint->config().vocab_size;
  IdDigest output;
  for (int i = 0; i < wire.token_ids_size(); ++i) {
    const int32_t id = wire.token_ids(i);
    if (id < 0 || id >= vocab) {
      return absl::InvalidArgumentError(
          absl::StrCat("resume.token_ids[", i, "] is ", id,
                       "; the vocabulary has ids 0 to ", vocab - 1));
    }
    output.Add(id);
  }
  if (output.digest() != token.output) {
    return absl::InvalidArgumentError(
        "resume.token_ids are not those that the resume token covers");
  }
  if (token.output_tokens >= token.max_tokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the resume token covers ", token.output_tokens, " tokens of at most ",
        token.max_tokens, ": nothing is left to make"));
  }
  return absl::OkStatus();
}

// The delivered text again, from its tokens.
absl::Status CheckText(const ResumeToken& token, const ServedModel& model,
                       const GenerationRequest& request) {
  OutputText text(model.tokenizer.get(), request.stop, request.stop_token_ids,
                  request.include_special_tokens);
  uint64_t digest = 0;
  for (size_t i = 0; i < request.delivered.size(); ++i) {
    TL_ASSIGN_OR_RETURN(const OutputText::Piece piece,
                        text.Append(request.delivered[i]));
    if (piece.stopped()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "resume.token_ids[", i, "] ends the text: nothing is left to make"));
    }
    digest = TextDigest(digest, piece.text);
  }
  if (digest == token.text) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "this trunk's tokenizer.json makes other text of the delivered tokens "
      "than the one the resume token comes from");
}

}  // namespace

absl::Status Resume(const v1::GenerateRequest& wire, const ServedModel& model,
                    GenerationRequest* request) {
  const v1::ResumePoint& resume = wire.resume();
  TL_ASSIGN_OR_RETURN(const ResumeToken token,
                      ParseResumeToken(resume.token()));
  TL_RETURN_IF_ERROR(CheckPlace(token, model));
  TL_RETURN_IF_ERROR(CheckRequest(wire, token, *request));
  TL_RETURN_IF_ERROR(TakeSampling(wire.sampling(), token, &request->sampling));
  TL_RETURN_IF_ERROR(CheckDelivered(resume, token, model));
  request->max_tokens = token.max_tokens;
  request->delivered.assign(resume.token_ids().begin(),
                            resume.token_ids().end());
  TL_RETURN_IF_ERROR(CheckText(token, model, *request));
  request->delivered_text = token.text;
  request->spent.queued = absl::Microseconds(token.queued_us);
  request->spent.prefill = absl::Microseconds(token.prefill_us);
  request->spent.decode = absl::Microseconds(token.decode_us);
  return absl::OkStatus();
}

}  // namespace trunkline::trunk
