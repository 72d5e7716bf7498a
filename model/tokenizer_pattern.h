#pragma once

// A pre-tokenizer pattern: the regular expression as tokenizer.json spells it,
// run by PCRE2. The files are written for Oniguruma (Ruby syntax); what both
// engines read alike is passed on, what they read differently is rewritten or
// refused by name, so a pattern either splits as its author saw it or does not
// load.

#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace trunkline::model {

// The same expression for PCRE2. UNIMPLEMENTED names the construct.
absl::StatusOr<std::string> TranslateOnigurumaPattern(
    absl::string_view pattern);

// Immutable after Compile; safe to use from many threads.
class TokenizerPattern {
 public:
  static absl::StatusOr<std::unique_ptr<TokenizerPattern>> Compile(
      absl::string_view pattern);

  ~TokenizerPattern();
  TokenizerPattern(const TokenizerPattern&) = delete;
  TokenizerPattern& operator=(const TokenizerPattern&) = delete;

  // Calls `part` for every match and for every stretch between matches, in
  // order, empty ones left out. text is UTF-8. RESOURCE_EXHAUSTED when the
  // pattern would need more steps than a fixed number per byte of text: no text
  // can hang a server.
  absl::Status ForEachPart(
      absl::string_view text,
      absl::FunctionRef<absl::Status(absl::string_view)> part) const;

  // Whether the pattern matches at the front of text.
  bool MatchesFront(absl::string_view text) const;

 private:
  struct Compiled;  // keeps pcre2.h out of here
  explicit TokenizerPattern(std::unique_ptr<Compiled> compiled);
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace trunkline::model
