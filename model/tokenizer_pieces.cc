#include "model/tokenizer_pieces.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace trunkline::model {

absl::StatusOr<PieceSplitter> PieceSplitter::Build(
    const std::vector<PreTokenizerStep>& steps) {
  PieceSplitter splitter;
  for (const PreTokenizerStep& step : steps) {
    Step built;
    built.step = step;
    if (step.kind == PreTokenizerStep::Kind::kSplitPattern) {
      TL_ASSIGN_OR_RETURN(built.pattern,
                          TokenizerPattern::Compile(step.pattern));
    }
    splitter.steps_.push_back(std::move(built));
  }
  return splitter;
}

absl::Status PieceSplitter::ForEachPiece(absl::string_view text,
                                         Sink piece) const {
  return text.empty() ? absl::OkStatus() : Run(0, text, piece);
}

absl::Status PieceSplitter::Run(size_t step, absl::string_view text,
                                Sink piece) const {
  if (step == steps_.size()) return piece(text);
  const auto next = [&](absl::string_view part) {
    return Run(step + 1, part, piece);
  };
  const Step& s = steps_[step];
  switch (s.step.kind) {
    case PreTokenizerStep::Kind::kSplitPattern:
      return s.pattern->ForEachPart(text, next);
    case PreTokenizerStep::Kind::kPrefixSpace:
      return text.front() == ' ' ? next(text) : next(absl::StrCat(" ", text));
    case PreTokenizerStep::Kind::kSplitString:
      break;
  }
  const std::string& separator = s.step.pattern;
  while (!text.empty()) {
    // An empty separator is found nowhere.
    const size_t at =
        separator.empty() ? absl::string_view::npos : text.find(separator);
    if (at == absl::string_view::npos) return next(text);
    if (at > 0) TL_RETURN_IF_ERROR(next(text.substr(0, at)));
    TL_RETURN_IF_ERROR(next(text.substr(at, separator.size())));
    text.remove_prefix(at + separator.size());
  }
  return absl::OkStatus();
}

}  // namespace trunkline::model
