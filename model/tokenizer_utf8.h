#pragma once

// UTF-8 one sequence at a time, as Unicode's table 3-7 has it. Shared by the
// tokenizer (which refuses broken text and names the place) and the text stream
// (which must know a broken byte from one whose rest is still to come).

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace trunkline::model {

enum class Utf8Kind : uint8_t {
  kCharacter,   // a whole, well-formed character
  kBroken,      // can not become a character, whatever follows
  kIncomplete,  // the text ends inside what may still become a character
};

struct Utf8Sequence {
  Utf8Kind kind = Utf8Kind::kBroken;
  // kCharacter: its bytes. kBroken: the maximal subpart, which one U+FFFD
  // replaces. kIncomplete: all bytes that are there.
  size_t bytes = 1;
};

// What stands at the front of `text`, which must not be empty.
Utf8Sequence FrontUtf8(absl::string_view text);

// The byte offset of the first thing that is not a whole character, or npos.
size_t FindInvalidUtf8(absl::string_view text);

// The code point at the front of well-formed text, and where its character
// starts that ends at `end`.
char32_t FrontCodePoint(absl::string_view text);
size_t CharacterStartBefore(absl::string_view text, size_t end);

// The property White_Space: what \s means in a tokenizer.json.
bool IsUnicodeWhiteSpace(char32_t c);

constexpr absl::string_view kReplacementCharacter = "\xef\xbf\xbd";  // U+FFFD

}  // namespace trunkline::model
