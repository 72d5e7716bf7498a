#include "trunk_worker/output_text.h"

#include <algorithm>
#include <utility>

#include "common/status_macros.h"

namespace trunkline::trunk {

OutputText::OutputText(const model::Tokenizer* tokenizer,
                       std::vector<std::string> stop_strings,
                       std::vector<int32_t> stop_token_ids,
                       bool include_special_tokens)
    : tokenizer_(tokenizer),
      stop_token_ids_(std::move(stop_token_ids)),
      include_special_tokens_(include_special_tokens),
      text_(std::move(stop_strings)) {}

absl::StatusOr<OutputText::Piece> OutputText::Append(int32_t token) {
  Piece piece;
  piece.stop_token = std::find(stop_token_ids_.begin(), stop_token_ids_.end(),
                               token) != stop_token_ids_.end();
  // The token that ends a text is no part of it.
  if (tokenizer_ == nullptr || piece.stop_token) return piece;
  if (tokenizer_->IsSpecial(token) && !include_special_tokens_) return piece;
  absl::StatusOr<absl::string_view> bytes = tokenizer_->TokenBytes(token);
  // Models may have more embedding rows than the tokenizer has tokens: such an
  // id has no text.
  if (absl::IsOutOfRange(bytes.status())) return piece;
  TL_RETURN_IF_ERROR(bytes.status());
  model::TextStream::Piece appended = text_.Append(*bytes);
  piece.text = std::move(appended.text);
  if (appended.stopped) piece.stop = std::move(appended.stop);
  return piece;
}

OutputText::Piece OutputText::Finish() {
  Piece piece;
  piece.text = text_.Finish();
  piece.stop = text_.stop();
  return piece;
}

}  // namespace trunkline::trunk
