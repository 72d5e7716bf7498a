#pragma once

// From output tokens to output text: which tokens have text, what a stop string
// holds back, where the text ends. Pure; the same tokens give the same text
// however they are cut into streams, so a stream is resumed by appending what
// was delivered again.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/text_stream.h"
#include "model/tokenizer.h"

namespace trunkline::trunk {

class OutputText {
 public:
  // tokenizer outlives this; null: no token has text.
  OutputText(const model::Tokenizer* tokenizer,
             std::vector<std::string> stop_strings,
             std::vector<int32_t> stop_token_ids, bool include_special_tokens);

  struct Piece {
    std::string text;  // safe to deliver now
    std::string stop;  // the stop string that the token completed
    bool stop_token = false;
    bool stopped() const { return stop_token || !stop.empty(); }
  };
  absl::StatusOr<Piece> Append(int32_t token);
  // No token follows: what was held back. It may complete a stop string, which
  // is in `stop` then.
  Piece Finish();

 private:
  const model::Tokenizer* const tokenizer_;
  const std::vector<int32_t> stop_token_ids_;
  const bool include_special_tokens_;
  model::TextStream text_;
};

}  // namespace trunkline::trunk
