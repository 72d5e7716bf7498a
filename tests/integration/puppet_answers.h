#pragma once

// What a puppet expert worker can say to a dispatch frame: an answer or a
// refusal with one thing changed.

#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "common/check.h"
#include "dispatch/expert_frame.h"
#include "transport/transport.h"

namespace trunkline::testing {

// Frames that a puppet received and holds; shared with the test's thread.
class HeldFrames {
 public:
  struct Held {
    transport::ConnectionId connection;
    transport::Message message;
  };
  void Add(transport::Event& event) {
    std::lock_guard<std::mutex> lock(mutex_);
    held_.push_back({event.connection, std::move(event.message)});
  }
  size_t count() {
    std::lock_guard<std::mutex> lock(mutex_);
    return held_.size();
  }

 private:
  std::mutex mutex_;
  std::vector<Held> held_;
};

struct PuppetAnswer {
  dispatch::FrameHeader header;
  std::vector<uint32_t> token_id;
  std::vector<uint16_t> slot;
  std::vector<uint32_t> expert_id;
};

// An answer to the frame whose rows are all zero: right in form, changed by
// `edit`.
inline transport::Message ZeroAnswer(
    transport::Transport& transport, const transport::Message& frame,
    const std::function<void(PuppetAnswer&)>& edit) {
  const auto view = dispatch::DecodeDispatch({frame.data(), frame.size});
  TL_CHECK(view.ok()) << view.status();
  PuppetAnswer answer;
  answer.header = view->header;
  answer.header.row_count = view->header.route_count;
  answer.token_id.assign(view->token_id.begin(), view->token_id.end());
  answer.slot.assign(view->slot.begin(), view->slot.end());
  answer.expert_id.assign(view->expert_id.begin(), view->expert_id.end());
  edit(answer);
  answer.header.kind = dispatch::FrameKind::kAnswer;
  answer.header.route_count = static_cast<uint32_t>(answer.token_id.size());
  transport::Message message = transport.Allocate(dispatch::AnswerFrameBytes(
      answer.header.route_count, answer.header.row_width,
      answer.header.row_dtype));
  std::memset(message.data(), 0, message.size);
  const std::span<std::byte> bytes(message.data(), message.size);
  const dispatch::AnswerFrameWriter writer =
      dispatch::BeginAnswerFrame(answer.header, bytes);
  for (size_t i = 0; i < answer.token_id.size(); ++i) {
    writer.token_id[i] = answer.token_id[i];
    writer.slot[i] = answer.slot[i];
    writer.expert_id[i] = answer.expert_id[i];
  }
  dispatch::SealFrame(bytes);
  return message;
}

inline transport::Message RefusalOf(transport::Transport& transport,
                                    const transport::Message& frame,
                                    dispatch::RefusalCode code,
                                    const std::string& why) {
  const auto header = dispatch::DecodeHeader({frame.data(), frame.size});
  TL_CHECK(header.ok()) << header.status();
  dispatch::FrameHeader refusal = *header;
  refusal.refusal = code;
  transport::Message message =
      transport.Allocate(dispatch::RefusalFrameBytes(why.size()));
  const std::span<std::byte> bytes(message.data(), message.size);
  dispatch::WriteRefusalFrame(refusal, why, bytes);
  dispatch::SealFrame(bytes);
  return message;
}

}  // namespace trunkline::testing
