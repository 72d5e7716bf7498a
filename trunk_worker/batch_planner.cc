#include "trunk_worker/batch_planner.h"

#include <algorithm>

#include "common/check.h"

namespace trunkline::trunk {

void PlanBatch(const BatchLimits& limits, std::span<const int64_t> prompt_left,
               uint64_t rotation, std::vector<BatchRun>* runs) {
  TL_CHECK_GE(limits.rows_max, 2);
  TL_CHECK_GE(limits.prefill_chunk, 1);
  runs->clear();
  int64_t decoding = 0;
  int64_t prompt_rows = 0;
  for (int64_t left : prompt_left) {
    if (left == 0) {
      ++decoding;
    } else {
      prompt_rows += std::min(left, limits.prefill_chunk);
    }
  }
  const int64_t kept_for_prefill =
      std::min({prompt_rows, limits.prefill_chunk,
                std::max<int64_t>(1, limits.rows_max / 4)});
  const int64_t decode_rows =
      std::min(decoding, limits.rows_max - kept_for_prefill);

  // The decoding sequences whose ordinal lies in the circular window
  // [rotation, rotation + decode_rows).
  const int64_t first =
      decoding == 0 ? 0 : static_cast<int64_t>(rotation % decoding);
  int64_t ordinal = 0;
  for (size_t i = 0; i < prompt_left.size(); ++i) {
    if (prompt_left[i] != 0) continue;
    const int64_t turn = (ordinal++ - first + decoding) % decoding;
    if (turn < decode_rows) runs->push_back({i, 1, true});
  }

  int64_t budget = limits.rows_max - decode_rows;
  for (size_t i = 0; i < prompt_left.size() && budget > 0; ++i) {
    if (prompt_left[i] == 0) continue;
    const int64_t rows =
        std::min({prompt_left[i], limits.prefill_chunk, budget});
    runs->push_back({i, rows, false});
    budget -= rows;
  }
}

}  // namespace trunkline::trunk
