#include "model/tokenizer_pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace trunkline::model {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> Parts(absl::string_view pattern,
                               absl::string_view text) {
  const auto compiled = TokenizerPattern::Compile(pattern);
  EXPECT_TRUE(compiled.ok()) << compiled.status();
  std::vector<std::string> parts;
  if (!compiled.ok()) return parts;
  const absl::Status status =
      (*compiled)->ForEachPart(text, [&](absl::string_view part) {
        parts.emplace_back(part);
        return absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
  return parts;
}

TEST(TokenizerPattern, MatchesAndTheStretchesBetweenThemAreParts) {
  EXPECT_THAT(Parts("b+", "abbcb"), ElementsAre("a", "bb", "c", "b"));
  EXPECT_THAT(Parts("b+", "xyz"), ElementsAre("xyz"));
  EXPECT_THAT(Parts("b+", ""), ElementsAre());
}

// An empty match cuts, too, and the search goes on behind it.
TEST(TokenizerPattern, EmptyMatchesCutBetweenCharacters) {
  EXPECT_THAT(Parts("x*", "ab\xc3\xa9"), ElementsAre("a", "b", "\xc3\xa9"));
  EXPECT_THAT(Parts("(?=b)", "abab"), ElementsAre("a", "ba", "b"));
}

// PCRE2's own \s would take the Mongolian vowel separator, U+180E, as a space.
TEST(TokenizerPattern, WhiteSpaceIsTheUnicodeProperty) {
  EXPECT_THAT(Parts("\\s+",
                    "a\xe1\xa0\x8e"
                    "b"),
              ElementsAre("a\xe1\xa0\x8e"
                          "b"));
  EXPECT_THAT(Parts("[^\\s]+", "a\xc2\x85\xe2\x80\xa8z"),
              ElementsAre("a", "\xc2\x85\xe2\x80\xa8", "z"));
}

// In Ruby's syntax ^ and $ are about lines.
TEST(TokenizerPattern, AnchorsAreAboutLines) {
  EXPECT_THAT(Parts("^a", "a\naa"), ElementsAre("a", "\n", "a", "a"));
}

TEST(TokenizerPattern, LookbehindSeesTheTextInFrontOfTheSearch) {
  EXPECT_THAT(Parts("a|(?<=a)b", "abb"), ElementsAre("a", "b", "b"));
}

TEST(TokenizerPattern, RefusesByNameWhatEnginesReadDifferently) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"\\w+", "\"\\w\""},        {"[\\w-]", "\"\\w\""},
      {"\\bx", "\"\\b\""},        {"\\h", "\"\\h\""},
      {"\\u00e9", "\"\\u\""},     {"(a)\\1", "\"\\1\""},
      {"\\Qa\\E", "\"\\Q\""},     {"\\xe9", "\"\\xe9\""},
      {"[a[b]]", "\"[\""},        {"[a-z&&[^b]]", "\"&&\""},
      {"[[:alpha:]]", "\"[\""},   {"[]a]", "\"]\""},
      {"\\p{N}{1,3}+", "\"}+\""}, {"a{,3}", "\"{,3}\""},
      {"(?i)a", "\"(?i)\""},      {"(?<n>a)", "\"(?<n\""},
      {"(*NO_JIT)a", "\"(*NO\""}, {"\\pL", "\"\\pL\""},
      {"(?m:a.b)", "\"(?m:\""},   {"a{x}", "\"{x}\""},
  };
  for (const auto& [pattern, named] : cases) {
    const auto compiled = TokenizerPattern::Compile(pattern);
    EXPECT_EQ(compiled.status().code(), absl::StatusCode::kUnimplemented)
        << pattern;
    EXPECT_THAT(std::string(compiled.status().message()), HasSubstr(named));
  }
}

TEST(TokenizerPattern, RefusesBrokenPatternsWithTheReason) {
  for (const std::string pattern : {"(a", "a)", "[a", "*a", "a\\",
                                    "\\p{NoSuchThing}", "[z-a]", "(?<=a+)b"}) {
    const auto compiled = TokenizerPattern::Compile(pattern);
    EXPECT_EQ(compiled.status().code(), absl::StatusCode::kInvalidArgument)
        << pattern << compiled.status();
    EXPECT_THAT(std::string(compiled.status().message()), HasSubstr(pattern));
  }
}

// Backtracking without end: ended by the budget of steps, not by patience.
TEST(TokenizerPattern, AnExponentialPatternIsAnErrorNotAHang) {
  const auto compiled = TokenizerPattern::Compile("(?:a|aa)+$(?<!a)");
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  const absl::Status status = (*compiled)->ForEachPart(
      std::string(2000, 'a') + "b",
      [](absl::string_view) { return absl::OkStatus(); });
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
}

// One match over a whole megabyte that needs a step, or a stack frame, per
// character has to work: the budget grows with the text.
TEST(TokenizerPattern, OneMatchMayRunOverAWholeMegabyte) {
  const std::string text(1 << 20, 'a');
  for (const char* pattern : {"(?:a|b)+", "(?:(?:ab?)+c|a+)"}) {
    const std::vector<std::string> parts = Parts(pattern, text);
    ASSERT_EQ(parts.size(), 1u) << pattern;
    EXPECT_TRUE(parts[0] == text) << pattern;  // not printed
  }
}

TEST(TokenizerPattern, AnErrorOfTheCallerEndsTheScan) {
  const auto compiled = TokenizerPattern::Compile("a");
  int calls = 0;
  const absl::Status status =
      (*compiled)->ForEachPart("aaa", [&](absl::string_view) {
        ++calls;
        return absl::CancelledError("enough");
      });
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace trunkline::model
