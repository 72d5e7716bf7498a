#pragma once

// What a worker would say to a frame, as values.

#include <vector>

#include "dispatch/layer_exchange.h"

namespace trunkline::dispatch {

struct AnswerParts {
  FrameHeader header;
  std::vector<uint32_t> token_id;
  std::vector<uint16_t> slot;
  std::vector<uint32_t> expert_id;

  AnswerFrameView View() const {
    AnswerFrameView view;
    view.header = header;
    view.token_id = token_id;
    view.slot = slot;
    view.expert_id = expert_id;
    return view;
  }
};

inline FrameHeader MakeReplyHeader(const SendAction& send, StepId step,
                                   LayerIndex layer, uint16_t micro_batch,
                                   RefusalCode refusal) {
  FrameHeader h;
  h.kind =
      refusal == RefusalCode::kNone ? FrameKind::kAnswer : FrameKind::kRefusal;
  h.worker_rank = send.share->worker.value;
  h.placement_version = send.version.value;
  h.step_id = step.value;
  h.layer = layer.value;
  h.micro_batch = micro_batch;
  h.attempt = send.attempt;
  h.refusal = refusal;
  return h;
}

inline AnswerParts MakeAnswer(const SendAction& send,
                              const routing::RouteTable& table, StepId step,
                              LayerIndex layer, uint16_t micro_batch) {
  AnswerParts answer;
  answer.header =
      MakeReplyHeader(send, step, layer, micro_batch, RefusalCode::kNone);
  for (uint32_t r : send.share->routes) {
    answer.token_id.push_back(table.token_id[r]);
    answer.slot.push_back(table.selected_slot[r]);
    answer.expert_id.push_back(table.expert_id[r].value);
  }
  answer.header.route_count = answer.header.row_count =
      static_cast<uint32_t>(answer.token_id.size());
  return answer;
}

}  // namespace trunkline::dispatch
