#include "model/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/model/tokenizer_json_builder.h"

namespace trunkline::model {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;

constexpr Tokenizer::EncodeOptions kPlain{false, true};

std::shared_ptr<const Tokenizer> Must(
    absl::StatusOr<std::shared_ptr<const Tokenizer>> tokenizer) {
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *tokenizer : nullptr;
}

std::shared_ptr<const Tokenizer> Demo() {
  static const auto demo =
      Must(Tokenizer::Load(TRUNKLINE_SOURCE_DIR "/models/demo/tokenizer.json"));
  return demo;
}

Ids EncodeOk(const Tokenizer& tokenizer, absl::string_view text,
             Tokenizer::EncodeOptions options = kPlain) {
  const auto ids = tokenizer.Encode(text, options);
  EXPECT_TRUE(ids.ok()) << ids.status();
  return ids.ok() ? *ids : Ids{};
}

// The given ids come from an independent encoder.
TEST(Tokenizer, GivesTheFixtureIdsForEveryText) {
  std::ifstream file(TRUNKLINE_FIXTURES "/demo/expected/tokenizer.json");
  const json expected = json::parse(file);
  ASSERT_EQ(expected["cases"].size(), 41u);
  for (const json& c : expected["cases"]) {
    const std::string text = c["text"];
    EXPECT_EQ(EncodeOk(*Demo(), text), c["ids"].get<Ids>()) << text;
    const auto back = Demo()->Decode(c["ids"].get<Ids>(), false);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(*back, text);
  }
}

// tiny spells merges as strings, ignores merges for whole pieces, and has a
// post-processor that adds nothing.
TEST(Tokenizer, ReadsMergesAsStringsAndTakesWholePieces) {
  const auto tiny = Must(
      Tokenizer::Load(TRUNKLINE_FIXTURES "/checkpoints/tiny/tokenizer.json"));
  EXPECT_EQ(tiny->vocab_size(), 512);
  const Tokenizer::EncodeOptions with_special{true, true};
  for (const char* text : {"the cat", "in the beginning", " t", "<s>x</s>"}) {
    const Ids ids = EncodeOk(*tiny, text);
    EXPECT_EQ(EncodeOk(*tiny, text, with_special), ids);
    EXPECT_EQ(*tiny->Decode(ids, false), text);
  }
  EXPECT_EQ(EncodeOk(*tiny, "<s></s>"), (Ids{1, 2}));
}

TEST(Tokenizer, BothSpellingsOfMergesAreTheSameTokenizer) {
  json pairs = SmallTokenizerJson({{"a", "b"}, {"ab", " "}});
  json strings = pairs;
  strings["model"]["merges"] = {"#version: 0.2", "a b", "ab \xc4\xa0"};
  const Ids ids = EncodeOk(*Must(ParseJson(pairs)), "abab ab");
  EXPECT_EQ(ids, EncodeOk(*Must(ParseJson(strings)), "abab ab"));
  EXPECT_EQ(ids, (Ids{256, 256, ' ', 256}));  // " ab" is one piece
}

TEST(Tokenizer, IgnoreMergesTakesAPieceThatMergesWouldNotMake) {
  json root = SmallTokenizerJson({{"b", "c"}, {"a", "b"}});
  root["model"]["vocab"]["abc"] = 300;  // no merge leads there
  EXPECT_EQ(EncodeOk(*Must(ParseJson(root)), "abc"), (Ids{'a', 256}));
  root["model"]["ignore_merges"] = true;
  EXPECT_EQ(EncodeOk(*Must(ParseJson(root)), "abc"), (Ids{300}));
  EXPECT_EQ(EncodeOk(*Must(ParseJson(root)), "abcb"), (Ids{'a', 256, 'b'}));
}

TEST(Tokenizer, TheTemplateAddsItsTokensOnlyWhenAsked) {
  EXPECT_EQ(EncodeOk(*Demo(), "a", {true, true}), (Ids{1, 113}));
  EXPECT_EQ(EncodeOk(*Demo(), "", {true, true}), (Ids{1}));
  EXPECT_EQ(EncodeOk(*Demo(), "a", {false, true}), (Ids{113}));
}

TEST(Tokenizer, ASequenceOfTemplatesWrapsFromTheInside) {
  json root = SmallTokenizerJson();
  root["added_tokens"] = {AddedTokenJson(300, "[A]", {{"special", true}}),
                          AddedTokenJson(301, "[B]", {{"special", true}})};
  const auto wrap = [](const char* name, int id) {
    return json{{"type", "TemplateProcessing"},
                {"single",
                 {{{"SpecialToken", {{"id", name}, {"type_id", 0}}}},
                  {{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
                  {{"SpecialToken", {{"id", name}, {"type_id", 0}}}}}},
                {"pair", json::array()},
                {"special_tokens",
                 {{name, {{"id", name}, {"ids", {id}}, {"tokens", {name}}}}}}};
  };
  root["post_processor"] = {
      {"type", "Sequence"},
      {"processors",
       {wrap("[A]", 300), {{"type", "ByteLevel"}}, wrap("[B]", 301)}}};
  EXPECT_EQ(EncodeOk(*Must(ParseJson(root)), "x", {true, true}),
            (Ids{301, 300, 'x', 300, 301}));
}

TEST(Tokenizer, SpecialTokensStayTextWhenParsingIsOff) {
  const std::string text = "<|im_start|>user";
  EXPECT_EQ(EncodeOk(*Demo(), text)[0], 3);
  const Ids ids = EncodeOk(*Demo(), text, {false, false});
  for (const int32_t id : ids) EXPECT_FALSE(Demo()->IsSpecial(id)) << id;
  EXPECT_EQ(*Demo()->Decode(ids, true), text);
}

// A user's text must not reach a special token through the vocabulary either.
TEST(Tokenizer, AWholePieceIsNeverASpecialToken) {
  json root = SmallTokenizerJson();
  root["model"]["vocab"]["stop"] = 300;
  root["model"]["ignore_merges"] = true;
  root["added_tokens"] = {AddedTokenJson(300, "stop", {{"special", true}})};
  const auto tokenizer = Must(ParseJson(root));
  EXPECT_EQ(EncodeOk(*tokenizer, "stop"), (Ids{300}));
  EXPECT_EQ(EncodeOk(*tokenizer, "stop", {false, false}),
            (Ids{'s', 't', 'o', 'p'}));
}

TEST(Tokenizer, OfAddedTokensTheLeftmostAndThenTheLongestWins) {
  json root = SmallTokenizerJson();
  root["added_tokens"] = {
      AddedTokenJson(300, "ab"), AddedTokenJson(301, "abcd"),
      AddedTokenJson(302, "bcde"), AddedTokenJson(303, "\xe2\x82\xac uro")};
  const auto tokenizer = Must(ParseJson(root));
  EXPECT_EQ(EncodeOk(*tokenizer, "xabcde"), (Ids{'x', 301, 'e'}));
  EXPECT_EQ(EncodeOk(*tokenizer, "abce"), (Ids{300, 'c', 'e'}));
  EXPECT_EQ(EncodeOk(*tokenizer, "bcde\xe2\x82\xac uro"), (Ids{302, 303}));
  EXPECT_EQ(*tokenizer->Decode({303, 301}, false), "\xe2\x82\xac uroabcd");
}

TEST(Tokenizer, TokensThatAreNotNormalizedAreFoundFirst) {
  json root = SmallTokenizerJson();
  root["added_tokens"] = {AddedTokenJson(300, "abc", {{"normalized", true}}),
                          AddedTokenJson(301, "bc")};
  EXPECT_EQ(EncodeOk(*Must(ParseJson(root)), "abc"), (Ids{'a', 301}));
  root["added_tokens"][1]["normalized"] = true;
  EXPECT_EQ(EncodeOk(*Must(ParseJson(root)), "abc"), (Ids{300}));
}

TEST(Tokenizer, StrippingTokensTakeTheWhiteSpaceBesideThem) {
  json root = SmallTokenizerJson();
  root["added_tokens"] = {AddedTokenJson(300, "<l>", {{"lstrip", true}}),
                          AddedTokenJson(301, "<r>", {{"rstrip", true}}),
                          AddedTokenJson(302, "<n>")};
  const auto tokenizer = Must(ParseJson(root));
  EXPECT_EQ(EncodeOk(*tokenizer, "a \t\n<l> b"), (Ids{'a', 300, ' ', 'b'}));
  EXPECT_EQ(EncodeOk(*tokenizer, "a <r> \xe3\x80\x80 b"),
            (Ids{'a', ' ', 301, 'b'}));
  EXPECT_EQ(EncodeOk(*tokenizer, "a <n> b"), (Ids{'a', ' ', 302, ' ', 'b'}));
  // White space that one token took is not there for the next.
  EXPECT_EQ(EncodeOk(*tokenizer, "<r>  <l>"), (Ids{301, 300}));
}

TEST(Tokenizer, ASingleWordTokenIsNotFoundInsideAWord) {
  json root = SmallTokenizerJson();
  root["added_tokens"] = {AddedTokenJson(300, "am", {{"single_word", true}})};
  const auto tokenizer = Must(ParseJson(root));
  EXPECT_EQ(EncodeOk(*tokenizer, "am"), (Ids{300}));
  EXPECT_EQ(EncodeOk(*tokenizer, "(am)"), (Ids{'(', 300, ')'}));
  EXPECT_EQ(EncodeOk(*tokenizer, "ham"), (Ids{'h', 'a', 'm'}));
  EXPECT_EQ(EncodeOk(*tokenizer, "am_"), (Ids{'a', 'm', '_'}));
  EXPECT_EQ(EncodeOk(*tokenizer, "am\xc3\xa9"), (Ids{'a', 'm', 0xC3, 0xA9}));
  EXPECT_EQ(EncodeOk(*tokenizer,
                     "\xe2\x82\xac"
                     "am"),
            (Ids{0xE2, 0x82, 0xAC, 300}));
}

TEST(Tokenizer, AddPrefixSpaceIsForPartsThatDoNotStartWithOne) {
  json root = SmallTokenizerJson({{" ", "a"}});
  root["pre_tokenizer"]["add_prefix_space"] = true;
  const auto tokenizer = Must(ParseJson(root));
  EXPECT_EQ(EncodeOk(*tokenizer, "a"), (Ids{256}));
  EXPECT_EQ(EncodeOk(*tokenizer, " a"), (Ids{256}));
  EXPECT_EQ(EncodeOk(*tokenizer, ""), (Ids{}));
}

TEST(Tokenizer, SplitByAStringKeepsItAsAPieceOfItsOwn) {
  json root = SmallTokenizerJson({{"a", "-"}, {"-", "-"}, {"--", "a"}});
  root["pre_tokenizer"] = {{"type", "Sequence"},
                           {"pretokenizers",
                            {{{"type", "Split"},
                              {"pattern", {{"String", "--"}}},
                              {"behavior", "Isolated"},
                              {"invert", false}},
                             {{"type", "ByteLevel"},
                              {"add_prefix_space", false},
                              {"use_regex", false}}}}};
  EXPECT_EQ(EncodeOk(*Must(ParseJson(root)), "a--a-"), (Ids{'a', 257, 256}));
}

TEST(Tokenizer, TextThatIsNotUtf8IsRefusedWithTheOffset) {
  for (const auto& [text, offset] :
       std::vector<std::pair<std::string, int>>{{"abc\xff", 3},
                                                {"abcdefghij\xe2\x82", 10},
                                                {"\xed\xa0\x80", 0},
                                                {"\xc3\xa9\xc0\x80", 2}}) {
    const auto ids = Demo()->Encode(text, {});
    EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(ids.status().message()),
                HasSubstr("byte " + std::to_string(offset)));
  }
}

TEST(Tokenizer, AnUnknownIdIsOutOfRange) {
  json root = SmallTokenizerJson();
  root["added_tokens"] = {AddedTokenJson(300, "x!")};
  const auto tokenizer = Must(ParseJson(root));
  EXPECT_EQ(tokenizer->vocab_size(), 301);
  for (const int32_t id : {-1, 256, 299, 301, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(tokenizer->Decode({id}, false).status().code(),
              absl::StatusCode::kOutOfRange);
    EXPECT_EQ(tokenizer->TokenBytes(id).status().code(),
              absl::StatusCode::kOutOfRange);
    EXPECT_FALSE(tokenizer->IsSpecial(id));
  }
  EXPECT_EQ(*tokenizer->TokenBytes(0xFF), "\xff");
}

TEST(Tokenizer, DecodeLeavesSpecialTokensOutWhenAsked) {
  const Ids ids = {1, 113, 2};
  EXPECT_EQ(*Demo()->Decode(ids, false), "<s>a</s>");
  EXPECT_EQ(*Demo()->Decode(ids, true), "a");
}

TEST(Tokenizer, AMissingFileIsNotFound) {
  EXPECT_EQ(Tokenizer::Load("/nowhere/tokenizer.json").status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(Tokenizer::Load(TRUNKLINE_SOURCE_DIR).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(Tokenizer, ThreadsShareOne) {
  const std::string text = "In the beginning God created <s> the heaven.";
  const Ids expected = EncodeOk(*Demo(), text);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        const auto ids = Demo()->Encode(text, kPlain);
        wrong[t] += ids.ok() && *ids == expected ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ElementsAre(0, 0, 0, 0));
}

}  // namespace
}  // namespace trunkline::model
