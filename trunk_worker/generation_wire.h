#pragma once

// The API's messages to plain values and back. Every field of a request is
// checked here, and the message of a refusal names the field and its value.
// Pure: no clock, no thread; the seed is an argument.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/numerics.h"
#include "model/checkpoint.h"
#include "model/tokenizer.h"
#include "proto/generation.pb.h"
#include "routing/admission.h"
#include "trunk_worker/generation_request.h"

namespace trunkline::trunk {

// What the service says about and assumes for the model it serves.
struct ServedModel {
  std::shared_ptr<const model::Checkpoint> checkpoint;
  // Null: the checkpoint has none; prompts are token ids then.
  std::shared_ptr<const model::Tokenizer> tokenizer;
  std::string name;
  SamplingParams sampling;             // where a request says nothing
  std::vector<int32_t> end_token_ids;  // where a text ends by itself
  int64_t sequence_tokens_max = 0;
  routing::AdmissionPolicy admission;  // of every moe layer
  kernels::Numerics numerics = kernels::Numerics::kPortable;
  std::string self_check_digest;  // of that class on this machine

  static ServedModel For(std::shared_ptr<const model::Checkpoint> checkpoint,
                         std::shared_ptr<const model::Tokenizer> tokenizer,
                         int64_t sequence_tokens_max);
};

// What besides the weights decides the bits of an answer: the numerics class
// and, where one is set, the fixed capacity. One word.
std::string NumericsOf(const ServedModel& model);

// fresh_seed: used when the request has none.
absl::StatusOr<GenerationRequest> RequestFromWire(
    const v1::GenerateRequest& wire, const ServedModel& model,
    uint64_t fresh_seed);

// Adds what an output carries to a chunk that may hold earlier ones already.
void AppendToChunk(const Output& output, const ServedModel& model,
                   v1::GenerateChunk* chunk);
// A whole completion, chunk by chunk.
void AppendToResponse(const v1::GenerateChunk& chunk,
                      v1::GenerateResponse* response);

absl::StatusOr<v1::TokenizeResponse> Tokenize(const v1::TokenizeRequest& wire,
                                              const ServedModel& model);
absl::StatusOr<v1::DetokenizeResponse> Detokenize(
    const v1::DetokenizeRequest& wire, const ServedModel& model);
// The parts of GetModel that never change.
v1::GetModelResponse DescribeModel(const ServedModel& model);

}  // namespace trunkline::trunk
