#pragma once

// Added tokens: strings that become one token wherever the text spells them,
// before anything else looks at it. The rules are those of Hugging Face
// tokenizers: the leftmost match wins, of several the longest; tokens that are
// not "normalized" are found first, the others in the stretches between them.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/tokenizer_pattern.h"

namespace trunkline::model {

struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool special = false;      // left out of decoded text on request
  bool single_word = false;  // not beside a word character
  bool lstrip = false;       // takes the white space in front of it along
  bool rstrip = false;       // and behind it
  bool normalized = false;   // found after those that are not
};

// Immutable after Build; safe to use from many threads.
class AddedTokenSplitter {
 public:
  static absl::StatusOr<AddedTokenSplitter> Build(
      std::vector<AddedToken> tokens);

  struct Part {
    absl::string_view text;  // an ordinary stretch, when id is negative
    int32_t id = -1;
  };
  // parse_special false: special tokens stay text.
  std::vector<Part> Split(absl::string_view text, bool parse_special) const;

 private:
  // A trie of the contents. Node 0 is the root.
  struct Trie {
    std::array<bool, 256> starts{};  // whether some content starts so
    absl::flat_hash_map<uint64_t, uint32_t> edges;  // node << 8 | byte -> node
    std::vector<int32_t> token{-1};                 // of each node: tokens_[..]
    void Add(absl::string_view content, int32_t index);
    // The longest content at the front of text: an index, or -1.
    int32_t Longest(absl::string_view text) const;
  };

  void SplitBy(const Trie& trie, absl::string_view text, bool parse_special,
               std::vector<Part>* parts) const;
  bool IsSingleWord(absl::string_view text, size_t start, size_t end) const;

  std::vector<AddedToken> tokens_;
  Trie verbatim_, normalized_;
  std::unique_ptr<TokenizerPattern> word_character_;  // when one is single_word
};

}  // namespace trunkline::model
