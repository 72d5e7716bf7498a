#include "trunk_worker/generation_wire.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/dtype.h"
#include "common/status_macros.h"
#include "kernels/kernel_context.h"
#include "model/text_stream.h"
#include "trunk_worker/resume_request.h"

namespace trunkline::trunk {
namespace {

constexpr uint32_t kLogprobsMax = 20;
constexpr int kStopStringsMax = 64;
constexpr size_t kStopStringBytesMax = 1024;
constexpr int kStopTokensMax = 1024;

absl::Status NoTokenizer() {
  return absl::FailedPreconditionError(
      "the served checkpoint has no tokenizer.json: send the prompt as tokens");
}

absl::StatusOr<std::vector<int32_t>> Encode(const ServedModel& model,
                                            const std::string& text,
                                            bool add_special_tokens,
                                            bool no_parse_special_tokens) {
  if (model.tokenizer == nullptr) return NoTokenizer();
  auto ids = model.tokenizer->Encode(
      text, {add_special_tokens, !no_parse_special_tokens});
  if (!ids.ok()) return Annotate(ids.status(), "text");
  return ids;
}

absl::Status CheckId(const char* field, int index, int32_t id,
                     const ServedModel& model) {
  const int64_t vocab = model.checkpoint->config().vocab_size;
  if (id >= 0 && id < vocab) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, "[", index, "] is ", id,
                   "; the vocabulary has ids 0 to ", vocab - 1));
}

absl::StatusOr<std::vector<int32_t>> Prompt(const v1::GenerateRequest& wire,
                                            const ServedModel& model) {
  if (wire.prompt_case() == v1::GenerateRequest::PROMPT_NOT_SET) {
    return absl::InvalidArgumentError("prompt is not set: send text or tokens");
  }
  if (wire.prompt_case() == v1::GenerateRequest::kText) {
    TL_ASSIGN_OR_RETURN(std::vector<int32_t> ids,
                        Encode(model, wire.text(), wire.add_special_tokens(),
                               wire.no_parse_special_tokens()));
    if (ids.empty())
      return absl::InvalidArgumentError(
          "prompt text is \"\": it has no tokens");
    return ids;
  }
  const auto& ids = wire.tokens().ids();
  if (ids.empty())
    return absl::InvalidArgumentError("prompt tokens.ids is empty");
  for (int i = 0; i < ids.size(); ++i)
    TL_RETURN_IF_ERROR(CheckId("tokens.ids", i, ids[i], model));
  return std::vector<int32_t>(ids.begin(), ids.end());
}

SamplingParams Sampling(const v1::SamplingParams& wire, SamplingParams params,
                        uint64_t fresh_seed) {
  if (wire.has_temperature()) params.temperature = wire.temperature();
  if (wire.has_top_k()) params.top_k = wire.top_k();
  if (wire.has_top_p()) params.top_p = wire.top_p();
  if (wire.has_min_p()) params.min_p = wire.min_p();
  if (wire.has_repetition_penalty())
    params.repetition_penalty = wire.repetition_penalty();
  if (wire.has_presence_penalty())
    params.presence_penalty = wire.presence_penalty();
  params.seed = wire.has_seed() ? wire.seed() : fresh_seed;
  return params;
}

absl::Status CheckStops(const v1::GenerateRequest& wire,
                        const ServedModel& model) {
  if (wire.stop_size() > kStopStringsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("stop has ", wire.stop_size(), " strings; at most ",
                     kStopStringsMax, " are allowed"));
  }
  for (int i = 0; i < wire.stop_size(); ++i) {
    if (wire.stop(i).empty())
      return absl::InvalidArgumentError(absl::StrCat("stop[", i, "] is empty"));
    if (wire.stop(i).size() > kStopStringBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat(
          "stop[", i, "] has ", wire.stop(i).size(), " bytes; at most ",
          kStopStringBytesMax, " are allowed"));
    }
  }
  if (wire.stop_size() > 0 && model.tokenizer == nullptr) return NoTokenizer();
  if (wire.stop_token_ids_size() > kStopTokensMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("stop_token_ids has ", wire.stop_token_ids_size(),
                     " ids; at most ", kStopTokensMax, " are allowed"));
  }
  for (int i = 0; i < wire.stop_token_ids_size(); ++i) {
    TL_RETURN_IF_ERROR(
        CheckId("stop_token_ids", i, wire.stop_token_ids(i), model));
  }
  return absl::OkStatus();
}

void SetLogprob(const TokenLogprob& from, const ServedModel& model,
                v1::TokenLogprob* to) {
  to->set_id(from.id);
  to->set_logprob(from.logprob);
  if (model.tokenizer == nullptr) return;
  const auto bytes = model.tokenizer->TokenBytes(from.id);
  if (bytes.ok()) to->set_token(std::string(*bytes));
}

void SetLogprobs(const TokenLogprobs& from, const ServedModel& model,
                 v1::TokenLogprobs* to) {
  SetLogprob(from.chosen, model, to->mutable_chosen());
  for (const TokenLogprob& top : from.top)
    SetLogprob(top, model, to->add_top());
}

}  // namespace

ServedModel ServedModel::For(
    std::shared_ptr<const model::Checkpoint> checkpoint,
    std::shared_ptr<const model::Tokenizer> tokenizer,
    int64_t sequence_tokens_max) {
  const model::GenerationDefaults& defaults = checkpoint->generation_defaults();
  ServedModel served;
  // do_sample false means greedy, whatever stands beside it.
  served.sampling.temperature =
      defaults.do_sample ? defaults.temperature : 0.0f;
  served.sampling.top_p = defaults.top_p;
  served.sampling.top_k = defaults.top_k;
  served.end_token_ids = defaults.eos_token_ids.empty()
                             ? checkpoint->config().eos_token_ids
                             : defaults.eos_token_ids;
  std::filesystem::path directory(checkpoint->directory());
  if (!directory.has_filename()) directory = directory.parent_path();
  served.name = directory.filename().string();
  served.checkpoint = std::move(checkpoint);
  served.tokenizer = std::move(tokenizer);
  served.sequence_tokens_max = sequence_tokens_max;
  return served;
}

std::string NumericsOf(const ServedModel& model) {
  std::string numerics = kernels::NumericsName(model.numerics);
  if (model.admission.kind == routing::AdmissionKind::kDropless)
    return numerics;
  return absl::StrCat(numerics, "+", routing::SpecOf(model.admission));
}

absl::StatusOr<GenerationRequest> RequestFromWire(
    const v1::GenerateRequest& wire, const ServedModel& model,
    uint64_t fresh_seed) {
  GenerationRequest request;
  request.sampling = Sampling(wire.sampling(), model.sampling, fresh_seed);
  TL_RETURN_IF_ERROR(ValidateSampling(request.sampling));
  TL_RETURN_IF_ERROR(CheckStops(wire, model));
  if (wire.logprobs() > kLogprobsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("logprobs is ", wire.logprobs(), "; it must be at most ",
                     kLogprobsMax));
  }
  if (wire.max_tokens() > model.sequence_tokens_max) {
    return absl::InvalidArgumentError(absl::StrCat(
        "max_tokens is ", wire.max_tokens(), "; a sequence may have ",
        model.sequence_tokens_max, " tokens, its prompt included"));
  }
  TL_ASSIGN_OR_RETURN(request.prompt, Prompt(wire, model));
  request.name = wire.request_id();
  request.max_tokens = wire.max_tokens();
  if (wire.max_tokens() == 0) {
    // As many as fit. A prompt that leaves no room is refused by the core.
    request.max_tokens =
        std::max<int64_t>(0, model.sequence_tokens_max -
                                 static_cast<int64_t>(request.prompt.size()));
  }
  request.stop.assign(wire.stop().begin(), wire.stop().end());
  request.stop_token_ids.assign(wire.stop_token_ids().begin(),
                                wire.stop_token_ids().end());
  if (!wire.ignore_eos()) {
    request.stop_token_ids.insert(request.stop_token_ids.end(),
                                  model.end_token_ids.begin(),
                                  model.end_token_ids.end());
  }
  request.logprobs = static_cast<int>(wire.logprobs());
  request.prompt_logprobs = wire.prompt_logprobs();
  request.include_special_tokens = wire.include_special_tokens();
  request.wait_for_capacity = wire.wait_for_capacity();
  if (wire.has_resume()) TL_RETURN_IF_ERROR(Resume(wire, model, &request));
  return request;
}

void AppendToChunk(const Output& output, const ServedModel& model,
                   v1::GenerateChunk* chunk) {
  for (int32_t id : output.token_ids) chunk->add_token_ids(id);
  chunk->mutable_text()->append(output.text);
  for (const TokenLogprobs& l : output.logprobs)
    SetLogprobs(l, model, chunk->add_logprobs());
  for (const TokenLogprobs& l : output.prompt_logprobs)
    SetLogprobs(l, model, chunk->add_prompt_logprobs());
  if (output.placement_version.valid())
    chunk->set_placement_version(output.placement_version.value);
  // A request that failed has a status in place of a finish reason.
  if (!output.finished || !output.status.ok()) return;
  chunk->set_finish_reason(output.reason == FinishReason::kStop
                               ? v1::FINISH_REASON_STOP
                               : v1::FINISH_REASON_LENGTH);
  chunk->set_stop(output.stop);
  v1::Usage* usage = chunk->mutable_usage();
  usage->set_prompt_tokens(static_cast<uint32_t>(output.usage.prompt_tokens));
  usage->set_output_tokens(static_cast<uint32_t>(output.usage.output_tokens));
  usage->set_resumed_tokens(static_cast<uint32_t>(output.usage.resumed_tokens));
  usage->set_queue_seconds(absl::ToDoubleSeconds(output.usage.queued));
  usage->set_prefill_seconds(absl::ToDoubleSeconds(output.usage.prefill));
  usage->set_decode_seconds(absl::ToDoubleSeconds(output.usage.decode));
  usage->set_routes_selected(output.usage.routes_selected);
  usage->set_routes_dropped(output.usage.routes_dropped);
}

void AppendToResponse(const v1::GenerateChunk& chunk,
                      v1::GenerateResponse* response) {
  response->mutable_token_ids()->MergeFrom(chunk.token_ids());
  response->mutable_text()->append(chunk.text());
  response->mutable_logprobs()->MergeFrom(chunk.logprobs());
  response->mutable_prompt_logprobs()->MergeFrom(chunk.prompt_logprobs());
  if (chunk.finish_reason() == v1::FINISH_REASON_UNSPECIFIED) return;
  response->set_finish_reason(chunk.finish_reason());
  response->set_stop(chunk.stop());
  *response->mutable_usage() = chunk.usage();
}

absl::StatusOr<v1::TokenizeResponse> Tokenize(const v1::TokenizeRequest& wire,
                                              const ServedModel& model) {
  TL_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                      Encode(model, wire.text(), wire.add_special_tokens(),
                             wire.no_parse_special_tokens()));
  v1::TokenizeResponse response;
  response.mutable_ids()->Add(ids.begin(), ids.end());
  return response;
}

absl::StatusOr<v1::DetokenizeResponse> Detokenize(
    const v1::DetokenizeRequest& wire, const ServedModel& model) {
  if (model.tokenizer == nullptr) return NoTokenizer();
  for (int i = 0; i < wire.ids_size(); ++i)
    TL_RETURN_IF_ERROR(CheckId("ids", i, wire.ids(i), model));
  auto bytes = model.tokenizer->Decode({wire.ids().begin(), wire.ids().end()},
                                       !wire.include_special_tokens());
  if (absl::IsOutOfRange(bytes.status()))
    return absl::InvalidArgumentError(
        absl::StrCat("ids: ", bytes.status().message()));
  TL_RETURN_IF_ERROR(bytes.status());
  // Tokens may end inside a character; text may not.
  model::TextStream stream({});
  v1::DetokenizeResponse response;
  response.set_text(stream.Append(*bytes).text);
  response.mutable_text()->append(stream.Finish());
  return response;
}

v1::GetModelResponse DescribeModel(const ServedModel& model) {
  const model::ModelConfig& config = model.checkpoint->config();
  v1::GetModelResponse wire;
  wire.set_name(model.name);
  wire.set_digest(model.checkpoint->digest());
  wire.set_architecture(config.architecture);
  wire.set_layer_pattern(config.LayerPattern());
  wire.set_vocab_size(static_cast<uint32_t>(config.vocab_size));
  wire.set_hidden_size(static_cast<uint32_t>(config.hidden_size));
  wire.set_max_sequence_tokens(
      static_cast<uint32_t>(model.sequence_tokens_max));
  wire.set_activation_dtype(
      std::string(DTypeName(model.checkpoint->activation_dtype())));
  wire.set_numerics_class(kernels::NumericsName(model.numerics));
  wire.set_self_check_digest(model.self_check_digest);
  wire.set_simd_target(kernels::ActiveTarget());
  for (const model::LayerSpec& spec : config.layers) {
    if (spec.kind != model::LayerKind::kMoe) continue;
    v1::MoeLayer* layer = wire.add_moe_layers();
    layer->set_layer(spec.index.value);
    layer->set_experts(static_cast<uint32_t>(spec.moe.experts));
    layer->set_top_k(static_cast<uint32_t>(spec.moe.top_k));
    const routing::AdmissionPolicy& admission = model.admission;
    layer->set_admission(routing::SpecOf(admission));
    if (admission.kind == routing::AdmissionKind::kDropless) continue;
    layer->set_group_tokens(static_cast<uint32_t>(admission.group_tokens));
    // More than its tokens a group has no use for.
    layer->set_capacity_rows(static_cast<uint32_t>(
        std::min(admission.group_tokens,
                 routing::ExpertCapacity(admission.capacity_factor,
                                         admission.group_tokens, spec.moe.top_k,
                                         spec.moe.experts))));
  }
  for (int32_t id : model.end_token_ids) wire.add_eos_token_ids(id);
  return wire;
}

}  // namespace trunkline::trunk
