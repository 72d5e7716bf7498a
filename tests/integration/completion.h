#pragma once

// One completion through the API, as a test sees it.

#include <grpcpp/client_context.h>

#include <chrono>
#include <iterator>
#include <string>
#include <vector>

#include "proto/generation.grpc.pb.h"

namespace trunkline::testing {

struct Completion {
  grpc::Status status;
  std::string text;
  std::vector<int32_t> ids;
  v1::FinishReason finish_reason = v1::FINISH_REASON_UNSPECIFIED;
  bool cancelled_by_test = false;
  v1::Usage usage;  // when it ended well
};

// Beginnings that the demo model knows how to go on from.
inline constexpr const char* kDemoPrompts[] = {
    "In the beginning God created",
    "And the LORD spake unto Moses, saying,",
    "Blessed are the",
    "And it came to pass in the days of",
    "The words of the Preacher, the son of David,",
    "Then said Jesus unto them,",
    "Thou shalt not",
    "Now these are the names of the children of Israel"};
inline constexpr int kDemoPromptCount = 8;
static_assert(std::size(kDemoPrompts) == kDemoPromptCount);

inline v1::GenerateRequest GreedyRequest(const std::string& prompt,
                                         uint32_t max_tokens) {
  v1::GenerateRequest request;
  request.set_text(prompt);
  request.set_max_tokens(max_tokens);
  request.set_ignore_eos(true);
  request.set_add_special_tokens(true);
  request.set_wait_for_capacity(true);
  request.mutable_sampling()->set_temperature(0.0f);
  return request;
}

// Streams to the end, or cancels after `cancel_after` tokens (negative: never).
inline Completion Stream(
    v1::Generation::Stub& stub, const v1::GenerateRequest& request,
    std::chrono::milliseconds deadline = std::chrono::seconds(120),
    int cancel_after = -1) {
  Completion result;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + deadline);
  auto reader = stub.GenerateStream(&context, request);
  v1::GenerateChunk chunk;
  while (reader->Read(&chunk)) {
    result.text += chunk.text();
    result.ids.insert(result.ids.end(), chunk.token_ids().begin(),
                      chunk.token_ids().end());
    if (chunk.finish_reason() != v1::FINISH_REASON_UNSPECIFIED)
      result.finish_reason = chunk.finish_reason();
    if (chunk.has_usage()) result.usage = chunk.usage();
    if (cancel_after >= 0 &&
        static_cast<int>(result.ids.size()) >= cancel_after &&
        !result.cancelled_by_test) {
      result.cancelled_by_test = true;
      context.TryCancel();
    }
  }
  result.status = reader->Finish();
  return result;
}

inline v1::GetModelResponse GetModel(v1::Generation::Stub& stub) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::seconds(10));
  v1::GetModelResponse model;
  stub.GetModel(&context, {}, &model);
  return model;
}

}  // namespace trunkline::testing
