#include "model/text_stream.h"

#include <algorithm>
#include <utility>

#include "model/tokenizer_utf8.h"

namespace trunkline::model {
namespace {

std::vector<size_t> Borders(const std::string& pattern) {
  std::vector<size_t> border(pattern.size(), 0);
  size_t length = 0;
  for (size_t i = 1; i < pattern.size(); ++i) {
    while (length > 0 && pattern[i] != pattern[length]) {
      length = border[length - 1];
    }
    if (pattern[i] == pattern[length]) ++length;
    border[i] = length;
  }
  return border;
}

}  // namespace

TextStream::TextStream(std::vector<std::string> stop_strings) {
  for (std::string& stop : stop_strings) {
    if (stop.empty() || FindInvalidUtf8(stop) != absl::string_view::npos) {
      continue;
    }
    std::vector<size_t> border = Borders(stop);
    matchers_.push_back({std::move(stop), std::move(border), 0});
  }
}

std::string TextStream::TakeCharacters(bool at_end) {
  std::string text;
  text.reserve(bytes_.size());
  absl::string_view rest = bytes_;
  while (!rest.empty()) {
    const Utf8Sequence front = FrontUtf8(rest);
    if (front.kind == Utf8Kind::kIncomplete && !at_end) break;
    if (front.kind == Utf8Kind::kCharacter) {
      text.append(rest.data(), front.bytes);
    } else {
      text.append(kReplacementCharacter.data(), kReplacementCharacter.size());
    }
    rest.remove_prefix(front.bytes);
  }
  bytes_.erase(0, bytes_.size() - rest.size());
  return text;
}

std::string TextStream::Deliver(absl::string_view text) {
  for (const char c : text) {
    pending_.push_back(c);
    const StopMatcher* completed = nullptr;
    for (StopMatcher& m : matchers_) {
      while (m.matched > 0 && m.pattern[m.matched] != c) {
        m.matched = m.border[m.matched - 1];
      }
      if (m.pattern[m.matched] == c) ++m.matched;
      if (m.matched == m.pattern.size() &&
          (completed == nullptr ||
           completed->pattern.size() < m.pattern.size())) {
        completed = &m;
      }
    }
    if (completed != nullptr) {
      stopped_ = true;
      stop_ = completed->pattern;
      pending_.resize(pending_.size() - stop_.size());
      return std::exchange(pending_, {});
    }
  }
  // A stop string is whole characters, so what is held back starts at one.
  size_t held = 0;
  for (const StopMatcher& m : matchers_) held = std::max(held, m.matched);
  std::string out = pending_.substr(0, pending_.size() - held);
  pending_.erase(0, out.size());
  return out;
}

TextStream::Piece TextStream::Append(absl::string_view token_bytes) {
  Piece piece;
  if (!stopped_) {
    bytes_.append(token_bytes.data(), token_bytes.size());
    piece.text = Deliver(TakeCharacters(/*at_end=*/false));
  }
  piece.stopped = stopped_;
  piece.stop = stop_;
  return piece;
}

std::string TextStream::Finish() {
  if (stopped_) return {};
  std::string out = Deliver(TakeCharacters(/*at_end=*/true));
  out += std::exchange(pending_, {});
  for (StopMatcher& m : matchers_) m.matched = 0;
  return out;
}

}  // namespace trunkline::model
