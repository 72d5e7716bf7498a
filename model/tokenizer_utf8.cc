#include "model/tokenizer_utf8.h"

#include <cstring>

namespace trunkline::model {
namespace {

struct LeadByte {
  int length;  // of the whole character; 0: no character starts with it
  uint8_t second_min, second_max;
};

LeadByte ClassifyLead(uint8_t lead) {
  if (lead < 0x80) return {1, 0, 0};
  if (lead < 0xC2) return {0, 0, 0};  // continuation, or overlong
  if (lead < 0xE0) return {2, 0x80, 0xBF};
  if (lead == 0xE0) return {3, 0xA0, 0xBF};  // below: overlong
  if (lead == 0xED) return {3, 0x80, 0x9F};  // above: surrogates
  if (lead < 0xF0) return {3, 0x80, 0xBF};
  if (lead == 0xF0) return {4, 0x90, 0xBF};  // below: overlong
  if (lead < 0xF4) return {4, 0x80, 0xBF};
  if (lead == 0xF4) return {4, 0x80, 0x8F};  // above: past U+10FFFF
  return {0, 0, 0};
}

}  // namespace

Utf8Sequence FrontUtf8(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const LeadByte lead = ClassifyLead(byte(0));
  if (lead.length == 0) return {Utf8Kind::kBroken, 1};
  for (size_t i = 1; i < static_cast<size_t>(lead.length); ++i) {
    if (i == text.size()) return {Utf8Kind::kIncomplete, i};
    const uint8_t low = i == 1 ? lead.second_min : 0x80;
    const uint8_t high = i == 1 ? lead.second_max : 0xBF;
    if (byte(i) < low || byte(i) > high) return {Utf8Kind::kBroken, i};
  }
  return {Utf8Kind::kCharacter, static_cast<size_t>(lead.length)};
}

size_t FindInvalidUtf8(absl::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    // Most text is ASCII: eight bytes at a time.
    uint64_t eight;
    while (i + sizeof(eight) <= text.size()) {
      std::memcpy(&eight, text.data() + i, sizeof(eight));
      if ((eight & 0x8080808080808080ull) != 0) break;
      i += sizeof(eight);
    }
    if (i == text.size()) break;
    const Utf8Sequence front = FrontUtf8(text.substr(i));
    if (front.kind != Utf8Kind::kCharacter) return i;
    i += front.bytes;
  }
  return absl::string_view::npos;
}

char32_t FrontCodePoint(absl::string_view text) {
  const auto byte = [&](size_t i) {
    return static_cast<char32_t>(static_cast<uint8_t>(text[i]));
  };
  const char32_t lead = byte(0);
  if (lead < 0x80) return lead;
  if (lead < 0xE0) return (lead & 0x1F) << 6 | (byte(1) & 0x3F);
  if (lead < 0xF0) {
    return (lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
  }
  return (lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 |
         (byte(3) & 0x3F);
}

size_t CharacterStartBefore(absl::string_view text, size_t end) {
  do {
    --end;
  } while ((static_cast<uint8_t>(text[end]) & 0xC0) == 0x80);
  return end;
}

bool IsUnicodeWhiteSpace(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

}  // namespace trunkline::model
