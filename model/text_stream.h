#pragma once

// Turns a stream of tokens into a stream of text that never ends inside a UTF-8
// character, and that holds back what might become a stop string. Pure: tokens
// in, text out. However the bytes are cut into tokens, the pieces joined are
// the same text.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace trunkline::model {

class TextStream {
 public:
  // A stop string that is empty or not UTF-8 never matches: the API refuses
  // both before they come here.
  explicit TextStream(std::vector<std::string> stop_strings);

  struct Piece {
    std::string text;      // safe to deliver now
    bool stopped = false;  // a stop string was completed; text ends before it,
                           // and nothing follows
    std::string stop;      // which one
  };
  // The stop string whose last character comes first wins; of several that end
  // at the same character, the one that starts first.
  Piece Append(absl::string_view token_bytes);
  // No token follows: what was held back. A character that was never finished
  // becomes U+FFFD. (A stop string that ends in U+FFFD can be completed by
  // that: the text then ends before it, and stopped() says so.)
  std::string Finish();

  bool stopped() const { return stopped_; }
  const std::string& stop() const { return stop_; }  // empty: none

 private:
  // A stop string being looked for, byte by byte (Knuth, Morris, Pratt): the
  // work per byte does not depend on how long the stop string is.
  struct StopMatcher {
    std::string pattern;
    std::vector<size_t> border;  // of pattern[0, i]: its longest proper border
    size_t matched = 0;  // the text so far ends with this many of its bytes
  };

  // The whole characters of bytes_ and, at the end of the stream, the rest.
  std::string TakeCharacters(bool at_end);
  // Moves `text` through the matchers; returns what can be delivered.
  std::string Deliver(absl::string_view text);

  std::vector<StopMatcher> matchers_;
  std::string bytes_;    // the front of a character whose rest is to come
  std::string pending_;  // text that is the front of a stop string, perhaps
  bool stopped_ = false;
  std::string stop_;
};

}  // namespace trunkline::model
