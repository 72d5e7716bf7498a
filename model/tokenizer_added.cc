#include "model/tokenizer_added.h"

#include <algorithm>
#include <utility>

#include "common/status_macros.h"
#include "model/tokenizer_utf8.h"

namespace trunkline::model {
namespace {

// \w of Rust's regular expressions, which is what decides "word" there.
constexpr absl::string_view kWordCharacter =
    "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}]";

size_t SkipSpaceBack(absl::string_view text, size_t start, size_t floor) {
  while (start > floor) {
    const size_t before = CharacterStartBefore(text, start);
    if (!IsUnicodeWhiteSpace(FrontCodePoint(text.substr(before)))) break;
    start = before;
  }
  return std::max(start, floor);
}

size_t SkipSpace(absl::string_view text, size_t end) {
  while (end < text.size() &&
         IsUnicodeWhiteSpace(FrontCodePoint(text.substr(end)))) {
    end += FrontUtf8(text.substr(end)).bytes;
  }
  return end;
}

}  // namespace

void AddedTokenSplitter::Trie::Add(absl::string_view content, int32_t index) {
  uint32_t node = 0;
  for (const char c : content) {
    const uint64_t key = uint64_t{node} << 8 | static_cast<uint8_t>(c);
    const auto [edge, added] =
        edges.try_emplace(key, static_cast<uint32_t>(token.size()));
    if (added) token.push_back(-1);
    node = edge->second;
  }
  token[node] = index;
  starts[static_cast<uint8_t>(content[0])] = true;
}

int32_t AddedTokenSplitter::Trie::Longest(absl::string_view text) const {
  int32_t longest = -1;
  uint32_t node = 0;
  for (const char c : text) {
    const auto edge = edges.find(uint64_t{node} << 8 | static_cast<uint8_t>(c));
    if (edge == edges.end()) break;
    node = edge->second;
    if (token[node] >= 0) longest = token[node];
  }
  return longest;
}

absl::StatusOr<AddedTokenSplitter> AddedTokenSplitter::Build(
    std::vector<AddedToken> tokens) {
  AddedTokenSplitter splitter;
  splitter.tokens_ = std::move(tokens);
  for (size_t i = 0; i < splitter.tokens_.size(); ++i) {
    const AddedToken& token = splitter.tokens_[i];
    if (token.content.empty()) continue;  // can not be spelled
    Trie& trie = token.normalized ? splitter.normalized_ : splitter.verbatim_;
    trie.Add(token.content, static_cast<int32_t>(i));
    if (token.single_word && splitter.word_character_ == nullptr) {
      TL_ASSIGN_OR_RETURN(splitter.word_character_,
                          TokenizerPattern::Compile(kWordCharacter));
    }
  }
  return splitter;
}

bool AddedTokenSplitter::IsSingleWord(absl::string_view text, size_t start,
                                      size_t end) const {
  if (start > 0) {
    const size_t before = CharacterStartBefore(text, start);
    if (word_character_->MatchesFront(text.substr(before, start - before))) {
      return false;
    }
  }
  return end == text.size() || !word_character_->MatchesFront(text.substr(
                                   end, FrontUtf8(text.substr(end)).bytes));
}

void AddedTokenSplitter::SplitBy(const Trie& trie, absl::string_view text,
                                 bool parse_special,
                                 std::vector<Part>* parts) const {
  size_t taken = 0;  // everything before it is in *parts
  size_t at = 0;
  while (at < text.size()) {
    if (!trie.starts[static_cast<uint8_t>(text[at])]) {
      ++at;
      continue;
    }
    const int32_t index = trie.Longest(text.substr(at));
    if (index < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[index];
    size_t start = at, end = at + token.content.size();
    at = end;  // also when the match does not count
    if (token.special && !parse_special) continue;
    if (token.single_word && !IsSingleWord(text, start, end)) continue;
    if (token.lstrip) start = SkipSpaceBack(text, start, taken);
    if (token.rstrip) end = SkipSpace(text, end);
    if (start > taken) {
      parts->push_back({text.substr(taken, start - taken), -1});
    }
    parts->push_back({text.substr(start, end - start), token.id});
    taken = end;
  }
  if (taken < text.size()) parts->push_back({text.substr(taken), -1});
}

std::vector<AddedTokenSplitter::Part> AddedTokenSplitter::Split(
    absl::string_view text, bool parse_special) const {
  std::vector<Part> first, parts;
  SplitBy(verbatim_, text, parse_special, &first);
  for (const Part& part : first) {
    if (part.id >= 0) {
      parts.push_back(part);
    } else {
      SplitBy(normalized_, part.text, parse_special, &parts);
    }
  }
  return parts;
}

}  // namespace trunkline::model
