#pragma once

// From a stretch of text to the pieces that byte-pair encoding sees one at a
// time: the pre-tokenizer steps, run.

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/tokenizer_file.h"
#include "model/tokenizer_pattern.h"

namespace trunkline::model {

// Immutable after Build; safe to use from many threads.
class PieceSplitter {
 public:
  static absl::StatusOr<PieceSplitter> Build(
      const std::vector<PreTokenizerStep>& steps);

  // Calls `piece` for every piece in order; none is empty. A piece is valid
  // during its call only: a prefixed space makes a copy.
  using Sink = absl::FunctionRef<absl::Status(absl::string_view)>;
  absl::Status ForEachPiece(absl::string_view text, Sink piece) const;

 private:
  struct Step {
    PreTokenizerStep step;
    std::unique_ptr<TokenizerPattern> pattern;  // of kSplitPattern
  };
  absl::Status Run(size_t step, absl::string_view text, Sink piece) const;
  std::vector<Step> steps_;
};

}  // namespace trunkline::model
