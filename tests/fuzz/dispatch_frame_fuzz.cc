// Any bytes given to DecodeDispatch: an error, or a view that keeps all that
// the header file promises.

#include <cmath>

#include "tests/fuzz/frame_fuzz.h"

using namespace trunkline::dispatch;  // NOLINT: a fuzz target is one file

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzFrame frame(data, size);
  for (int pass = 0; pass < 2; ++pass) {
    const auto view = DecodeDispatch(frame.bytes());
    if (view.ok()) {
      const size_t routes = view->header.route_count;
      Require(view->token_id.size() == routes && view->slot.size() == routes &&
                  view->expert_id.size() == routes &&
                  view->row_index.size() == routes &&
                  view->gate.size() == routes,
              "one entry a route");
      Require(view->rows.size() == view->header.row_count * view->row_stride,
              "rows are as many as the header says");
      std::vector<bool> named(view->header.row_count, false);
      for (size_t i = 0; i < routes; ++i) {
        Require(view->row_index[i] < view->header.row_count, "rows exist");
        named[view->row_index[i]] = true;
        Require(std::isfinite(view->gate[i]), "gates are finite");
        Require(i == 0 || view->expert_id[i - 1] <= view->expert_id[i],
                "experts ascend");
      }
      for (bool n : named) Require(n, "every row has a route");
      ReadAll(view->rows);
    } else {
      Require(!view.status().message().empty(), "an error says why");
    }
    frame.MakeChecksumRight();
  }
  return 0;
}
