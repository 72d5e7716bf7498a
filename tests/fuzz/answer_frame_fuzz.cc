// Any bytes given to DecodeAnswer and DecodeRefusal, which are what a trunk
// reads.

#include "tests/fuzz/frame_fuzz.h"

using namespace trunkline::dispatch;  // NOLINT: a fuzz target is one file

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzFrame frame(data, size);
  for (int pass = 0; pass < 2; ++pass) {
    const auto view = DecodeAnswer(frame.bytes());
    const auto refusal = DecodeRefusal(frame.bytes());
    Require(!view.ok() || !refusal.ok(), "a frame is of one kind");
    if (view.ok()) {
      const size_t routes = view->header.route_count;
      Require(
          view->header.row_count == routes && view->token_id.size() == routes &&
              view->slot.size() == routes && view->expert_id.size() == routes,
          "one row a route");
      Require(view->rows.size() == routes * view->row_stride,
              "rows are as many as the header says");
      ReadAll(view->rows);
    }
    if (refusal.ok()) {
      Require(refusal->header.refusal != RefusalCode::kNone,
              "a refusal has a code");
      Require(refusal->message.size() <= kRefusalMessageMax,
              "a message is bounded");
    }
    frame.MakeChecksumRight();
  }
  return 0;
}
