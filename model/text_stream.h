#pragma once

// Turns a stream of tokens into a stream of text that never ends inside a UTF-8
// character, and that holds back what might become a stop string. Pure: tokens
// in, text out.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace trunkline::model {

class TextStream {
 public:
  explicit TextStream(std::vector<std::string> stop_strings);

  struct Piece {
    std::string text;      // safe to deliver now
    bool stopped = false;  // a stop string was completed; text ends before it,
                           // and nothing follows
    std::string stop;      // which one
  };
  Piece Append(absl::string_view token_bytes);
  // No token follows: what was held back. Broken UTF-8 becomes U+FFFD.
  std::string Finish();

 private:
  std::vector<std::string> stop_strings_;
  std::string pending_;
  bool stopped_ = false;
};

}  // namespace trunkline::model
