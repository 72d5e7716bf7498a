#include "model/text_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "common/random.h"
#include "model/tokenizer_utf8.h"

namespace trunkline::model {
namespace {

// The reference reads a sequence as a number, not as a table of byte ranges:
// whether bytes[0, have) can be filled up to a scalar value of `want` bytes.
bool CanBecomeCharacter(absl::string_view bytes, size_t have, size_t want) {
  const auto lead = static_cast<uint8_t>(bytes[0]);
  const uint32_t lead_bits[] = {0, 0x7F, 0x1F, 0x0F, 0x07};
  const uint8_t lead_mark[] = {0, 0x00, 0xC0, 0xE0, 0xF0};
  const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  const uint32_t most[] = {0, 0x7F, 0x7FF, 0xFFFF, 0x10FFFF};
  if ((lead & ~lead_bits[want]) != lead_mark[want]) return false;
  uint32_t low = lead & lead_bits[want], high = low;
  for (size_t i = 1; i < want; ++i) {
    uint32_t low_bits = 0, high_bits = 0x3F;
    if (i < have) {
      const auto b = static_cast<uint8_t>(bytes[i]);
      if ((b & 0xC0) != 0x80) return false;
      low_bits = high_bits = b & 0x3F;
    }
    low = low << 6 | low_bits;
    high = high << 6 | high_bits;
  }
  low = std::max(low, least[want]);
  high = std::min(high, most[want]);
  if (low > high) return false;
  return !(low >= 0xD800 && high <= 0xDFFF);
}

std::string ReferenceText(absl::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    size_t whole = 0, subpart = 1;
    for (size_t want = 1; want <= 4; ++want) {
      for (size_t have = 1; have <= want && have <= bytes.size(); ++have) {
        if (!CanBecomeCharacter(bytes, have, want)) continue;
        subpart = std::max(subpart, have);
        if (have == want) whole = have;
      }
    }
    if (whole > 0) {
      text.append(bytes.data(), whole);
      bytes.remove_prefix(whole);
    } else {
      text += "\xef\xbf\xbd";
      bytes.remove_prefix(subpart);
    }
  }
  return text;
}

struct Expected {
  std::string text, stop;
};

// Naive: at every character's end in order, is there a stop string? The
// longest.
Expected ReferenceStop(const std::string& text,
                       const std::vector<std::string>& stops) {
  for (size_t end = 0; end <= text.size(); ++end) {
    std::string found;
    for (const std::string& s : stops) {
      if (s.size() <= end && text.compare(end - s.size(), s.size(), s) == 0 &&
          s.size() > found.size()) {
        found = s;
      }
    }
    if (!found.empty()) return {text.substr(0, end - found.size()), found};
  }
  return {text, ""};
}

std::vector<std::string> RandomCut(const std::string& bytes,
                                   RandomStream* random) {
  std::vector<std::string> tokens;
  const uint64_t longest = 1 + random->NextBelow(8);
  for (size_t at = 0; at < bytes.size();) {
    const size_t n = random->NextBelow(longest + 1);  // an empty token, too
    tokens.push_back(bytes.substr(at, n));
    at += n;
  }
  return tokens;
}

// Bytes that are rich in borders of UTF-8: lead bytes, continuations, and what
// can be neither.
std::string RandomBytes(RandomStream* random) {
  static const uint8_t kBytes[] = {'a',  'b',  'c',  0x80, 0xBF, 0x9F, 0xA0,
                                   0x90, 0x8F, 0xC0, 0xC2, 0xDF, 0xE0, 0xE2,
                                   0xED, 0xEF, 0xF0, 0xF1, 0xF4, 0xF5, 0xFF};
  std::string bytes;
  const size_t n = random->NextBelow(40);
  for (size_t i = 0; i < n; ++i) {
    bytes.push_back(static_cast<char>(
        random->NextBelow(4) == 0 ? random->NextBelow(256)
                                  : kBytes[random->NextBelow(sizeof(kBytes))]));
  }
  return bytes;
}

bool IsWholeText(const std::string& text) {
  return FindInvalidUtf8(text) == absl::string_view::npos;
}

TEST(TextStream, PiecesJoinToTheTextDecodedAtOnce) {
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    RandomStream random(seed);
    const std::string bytes = RandomBytes(&random);
    TextStream stream({});
    std::string joined;
    for (const std::string& token : RandomCut(bytes, &random)) {
      const TextStream::Piece piece = stream.Append(token);
      ASSERT_TRUE(IsWholeText(piece.text)) << "seed " << seed;
      ASSERT_FALSE(piece.stopped);
      joined += piece.text;
    }
    const std::string rest = stream.Finish();
    ASSERT_TRUE(IsWholeText(rest)) << "seed " << seed;
    ASSERT_EQ(joined + rest, ReferenceText(bytes)) << "seed " << seed;
    ASSERT_EQ(stream.Finish(), "");
  }
}

TEST(TextStream, StopStringsAgreeWithANaiveSearchHoweverTheTokensAreCut) {
  const std::vector<std::string> parts = {
      "a",        "b",    "aa",          "ab", "ba", "aab", "\xe2\x82\xac",
      "\xc3\xa9", "abab", "\xef\xbf\xbd"};
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    RandomStream random(seed);
    std::string bytes;
    for (uint64_t i = random.NextBelow(20); i > 0; --i) {
      bytes += parts[random.NextBelow(parts.size())];
      if (random.NextBelow(8) == 0) bytes += RandomBytes(&random);
    }
    std::vector<std::string> stops;
    for (uint64_t i = random.NextBelow(4); i > 0; --i) {
      std::string stop;
      for (uint64_t k = 1 + random.NextBelow(3); k > 0; --k) {
        stop += parts[random.NextBelow(parts.size())];
      }
      stops.push_back(stop);
    }
    const Expected expected = ReferenceStop(ReferenceText(bytes), stops);

    TextStream stream(stops);
    std::string joined, stop;
    for (const std::string& token : RandomCut(bytes, &random)) {
      const TextStream::Piece piece = stream.Append(token);
      ASSERT_TRUE(IsWholeText(piece.text)) << "seed " << seed;
      joined += piece.text;
      if (piece.stopped) {
        stop = piece.stop;
        break;
      }
    }
    joined += stream.Finish();
    if (stop.empty() && stream.stopped()) stop = stream.stop();
    ASSERT_EQ(joined, expected.text) << "seed " << seed;
    ASSERT_EQ(stop, expected.stop) << "seed " << seed;
  }
}

// What is held back must be needed: it is the front of a stop string, or of a
// character.
TEST(TextStream, DeliversAtOnceWhatNoStopStringCanClaim) {
  TextStream stream({"END", "Enough"});
  EXPECT_EQ(stream.Append("The ").text, "The ");
  EXPECT_EQ(stream.Append("E").text, "");
  EXPECT_EQ(stream.Append("n").text, "");
  EXPECT_EQ(stream.Append("d").text, "End");
  EXPECT_EQ(stream.Append("EEN").text, "E");
  EXPECT_EQ(stream.Append("!").text, "EN!");
  EXPECT_EQ(stream.Finish(), "");
}

TEST(TextStream, HoldsACharacterUntilItsLastByte) {
  TextStream stream({});
  EXPECT_EQ(stream.Append("\xf0").text, "");
  EXPECT_EQ(stream.Append("\x9f\x98").text, "");
  EXPECT_EQ(stream.Append("\x80!").text, "\xf0\x9f\x98\x80!");
}

TEST(TextStream, BrokenBytesAreReplacedAsSoonAsTheyCanNotBecomeACharacter) {
  TextStream stream({});
  EXPECT_EQ(stream.Append("\xe2\x82").text, "");
  EXPECT_EQ(stream.Append("x").text, "\xef\xbf\xbdx");
  EXPECT_EQ(stream.Append("\xff").text, "\xef\xbf\xbd");
  EXPECT_EQ(stream.Append("\xf0\x9f").text, "");
  EXPECT_EQ(stream.Finish(), "\xef\xbf\xbd");
}

TEST(TextStream, AStopStringAcrossTokensEndsTheTextInFrontOfIt) {
  TextStream stream({"\n\nQ:"});
  EXPECT_EQ(stream.Append("yes\n").text, "yes");
  EXPECT_EQ(stream.Append("\nQ").text, "");
  const TextStream::Piece piece = stream.Append(": more");
  EXPECT_TRUE(piece.stopped);
  EXPECT_EQ(piece.text, "");
  EXPECT_EQ(piece.stop, "\n\nQ:");
  const TextStream::Piece after = stream.Append("never shown");
  EXPECT_TRUE(after.stopped);
  EXPECT_EQ(after.text, "");
  EXPECT_EQ(stream.Finish(), "");
}

TEST(TextStream, FinishGivesBackTheFrontOfAStopString) {
  TextStream stream({"</answer>"});
  EXPECT_EQ(stream.Append("42</ans").text, "42");
  EXPECT_EQ(stream.Finish(), "</ans");
  EXPECT_FALSE(stream.stopped());
}

TEST(TextStream, AStopStringThatIsNotTextNeverMatches) {
  TextStream stream({"", "\x82\xac", "\xe2"});
  EXPECT_EQ(stream.Append("\xe2\x82\xac").text, "\xe2\x82\xac");
  EXPECT_EQ(stream.Finish(), "");
  EXPECT_FALSE(stream.stopped());
}

// A stop string of one repeated letter restarts in itself at every byte: a
// matcher without borders is quadratic here.
TEST(TextStream, ALongRepetitiveStopStringCostsLinearTime) {
  const std::string stop = std::string(1 << 20, 'a') + "b";
  TextStream stream({stop});
  std::string joined;
  for (int i = 0; i < 4096; ++i) {
    joined += stream.Append(std::string(1024, 'a')).text;
  }
  joined += stream.Finish();
  EXPECT_EQ(joined, std::string(4096 * 1024, 'a'));
}

}  // namespace
}  // namespace trunkline::model
