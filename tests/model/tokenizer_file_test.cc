#include "model/tokenizer_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/tokenizer.h"
#include "tests/model/tokenizer_json_builder.h"

namespace trunkline::model {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnsupported = absl::StatusCode::kUnimplemented;

struct BadFile {
  std::function<void(json&)> change;
  absl::StatusCode code;
  std::vector<std::string> named;  // all of these are in the message
};

json Template(json single, json special_tokens) {
  return {{"type", "TemplateProcessing"},
          {"single", std::move(single)},
          {"pair", json::array()},
          {"special_tokens", std::move(special_tokens)}};
}

json Split(json pattern, const char* behavior, bool invert = false) {
  return {{"type", "Sequence"},
          {"pretokenizers",
           {{{"type", "Split"},
             {"pattern", std::move(pattern)},
             {"behavior", behavior},
             {"invert", invert}},
            {{"type", "ByteLevel"}, {"use_regex", false}}}}};
}

const json kText = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
const json kBos = {{"SpecialToken", {{"id", "[B]"}, {"type_id", 0}}}};

std::vector<BadFile> ModelFaults() {
  return {
      {[](json& r) { r["model"]["type"] = "WordPiece"; },
       kUnsupported,
       {"model.type", "WordPiece"}},
      {[](json& r) { r["model"] = 3; }, kInvalid, {"model", "3"}},
      {[](json& r) { r.erase("model"); }, kInvalid, {"model", "null"}},
      {[](json& r) { r["model"]["dropout"] = 0.1; },
       kUnsupported,
       {"model.dropout", "0.1"}},
      {[](json& r) { r["model"]["byte_fallback"] = true; },
       kUnsupported,
       {"model.byte_fallback"}},
      {[](json& r) { r["model"]["fuse_unk"] = true; },
       kUnsupported,
       {"model.fuse_unk"}},
      {[](json& r) { r["model"]["continuing_subword_prefix"] = "##"; },
       kUnsupported,
       {"model.continuing_subword_prefix", "##"}},
      {[](json& r) { r["model"]["end_of_word_suffix"] = "</w>"; },
       kUnsupported,
       {"model.end_of_word_suffix", "</w>"}},
      {[](json& r) { r["model"]["new_feature"] = 7; },
       kUnsupported,
       {"model.new_feature", "7"}},
      {[](json& r) { r["model"]["ignore_merges"] = "yes"; },
       kInvalid,
       {"model.ignore_merges", "yes"}},
      {[](json& r) { r["model"]["unk_token"] = "<unk>"; },
       kInvalid,
       {"model.unk_token", "<unk>"}},
      {[](json& r) { r["model"]["vocab"] = json::array(); },
       kInvalid,
       {"model.vocab"}},
      {[](json& r) { r["model"]["vocab"]["zz"] = -1; },
       kInvalid,
       {"model.vocab[\"zz\"]", "-1"}},
      {[](json& r) { r["model"]["vocab"]["zz"] = 1.5; },
       kInvalid,
       {"model.vocab[\"zz\"]", "1.5"}},
      {[](json& r) { r["model"]["vocab"]["zz"] = 2147483647; },
       kInvalid,
       {"model.vocab[\"zz\"]", "2147483647"}},
      {[](json& r) { r["model"]["vocab"]["zz"] = 65; },
       kInvalid,
       {"id 65", "\"A\"", "\"zz\""}},
      {[](json& r) { r["model"]["vocab"].erase("A"); },
       kInvalid,
       {"byte 0x41", "\"A\""}},
      {[](json& r) { r["model"]["merges"] = {"a b c"}; },
       kInvalid,
       {"model.merges[0]", "a b c"}},
      {[](json& r) { r["model"]["merges"] = {"ab"}; },
       kInvalid,
       {"model.merges[0]", "ab"}},
      {[](json& r) { r["model"]["merges"] = {json::array({"a"})}; },
       kInvalid,
       {"model.merges[0]", "[\"a\"]"}},
      {[](json& r) { r["model"]["merges"] = {"q u"}; },
       kInvalid,
       {"model.merges[0]", "\"qu\" is not in model.vocab"}},
      {[](json& r) { r["model"]["merges"] = 5; }, kInvalid, {"model.merges"}},
  };
}

std::vector<BadFile> FrameFaults() {
  return {
      {[](json& r) { r = json::array(); }, kInvalid, {"top level"}},
      {[](json& r) { r["version"] = "2.0"; }, kUnsupported, {"version", "2.0"}},
      {[](json& r) { r["extra"] = 1; }, kUnsupported, {"extra"}},
      {[](json& r) {
         r["normalizer"] = {{"type", "NFC"}};
       },
       kUnsupported,
       {"normalizer", "NFC"}},
      {[](json& r) {
         r["truncation"] = {{"max_length", 512}};
       },
       kUnsupported,
       {"truncation", "512"}},
      {[](json& r) {
         r["padding"] = {{"pad_id", 0}};
       },
       kUnsupported,
       {"padding"}},
      {[](json& r) {
         r["decoder"] = {{"type", "Metaspace"}};
       },
       kUnsupported,
       {"decoder", "Metaspace"}},
      {[](json& r) { r["decoder"] = nullptr; },
       kUnsupported,
       {"decoder", "null"}},
  };
}

std::vector<BadFile> PreTokenizerFaults() {
  return {
      {[](json& r) { r["pre_tokenizer"] = nullptr; },
       kInvalid,
       {"pre_tokenizer", "null"}},
      {[](json& r) {
         r["pre_tokenizer"] = {{"type", "Whitespace"}};
       },
       kUnsupported,
       {"pre_tokenizer.type", "Whitespace"}},
      {[](json& r) {
         r["pre_tokenizer"] = Split({{"Regex", "a"}}, "Removed");
       },
       kUnsupported,
       {"pre_tokenizer.pretokenizers[0].behavior", "Removed"}},
      {[](json& r) {
         r["pre_tokenizer"] = Split({{"Regex", "a"}}, "Isolated", true);
       },
       kUnsupported,
       {"pre_tokenizer.pretokenizers[0].invert"}},
      {[](json& r) {
         r["pre_tokenizer"] = Split({{"Regex", "(a"}}, "Isolated");
       },
       kInvalid,
       {"pre_tokenizer", "(a"}},
      {[](json& r) {
         r["pre_tokenizer"] = Split({{"Glob", "*"}}, "Isolated");
       },
       kUnsupported,
       {"pattern.Glob"}},
      {[](json& r) { r["pre_tokenizer"] = Split(json::object(), "Isolated"); },
       kInvalid,
       {"pattern"}},
      {[](json& r) {
         json split = Split({{"Regex", "a"}}, "Isolated");
         std::swap(split["pretokenizers"][0], split["pretokenizers"][1]);
         r["pre_tokenizer"] = split;
       },
       kUnsupported,
       {"pretokenizers[1]", "after ByteLevel"}},
      {[](json& r) {
         r["pre_tokenizer"] = {{"type", "Sequence"},
                               {"pretokenizers", json::array()}};
       },
       kUnsupported,
       {"without ByteLevel"}},
      {[](json& r) {
         for (int i = 0; i < 50; ++i) {
           r["pre_tokenizer"] = json{{"type", "Sequence"},
                                     {"pretokenizers", {r["pre_tokenizer"]}}};
         }
       },
       kUnsupported,
       {"nested"}},
  };
}

std::vector<BadFile> TokenFaults() {
  return {
      {[](json& r) { r["added_tokens"] = {AddedTokenJson(65, "<x>")}; },
       kInvalid,
       {"id 65", "<x>"}},
      {[](json& r) { r["added_tokens"] = {AddedTokenJson(300, "A")}; },
       kInvalid,
       {"\"A\"", "300", "65"}},
      {[](json& r) {
         r["added_tokens"] = {AddedTokenJson(300, "x!"),
                              AddedTokenJson(301, "x!")};
       },
       kInvalid,
       {"x!", "300", "301"}},
      {[](json& r) {
         r["added_tokens"] = {AddedTokenJson(300, "x!"),
                              AddedTokenJson(300, "x!")};
       },
       kInvalid,
       {"x!", "twice"}},
      {[](json& r) {
         r["added_tokens"] = {{{"id", 300}}};
       },
       kInvalid,
       {"added_tokens[0].content"}},
      {[](json& r) {
         r["added_tokens"] = {AddedTokenJson(300, "x!", {{"fuzzy", true}})};
       },
       kUnsupported,
       {"added_tokens[0].fuzzy"}},
      {[](json& r) {
         r["added_tokens"] = {AddedTokenJson(300, "x!", {{"lstrip", 1}})};
       },
       kInvalid,
       {"added_tokens[0].lstrip"}},
      {[](json& r) {
         r["post_processor"] = {{"type", "BertProcessing"}};
       },
       kUnsupported,
       {"post_processor.type", "BertProcessing"}},
      {[](json& r) {
         r["post_processor"] = Template({kBos, kText}, json::object());
       },
       kInvalid,
       {"post_processor.single[0]", "[B]"}},
      {[](json& r) {
         r["post_processor"] =
             Template({kBos, kText}, {{"[B]", {{"ids", {999}}}}});
       },
       kInvalid,
       {"post_processor", "999"}},
      {[](json& r) {
         r["post_processor"] = Template({kBos}, {{"[B]", {{"ids", {1}}}}});
       },
       kUnsupported,
       {"post_processor.single", "without text"}},
      {[](json& r) {
         r["post_processor"] = Template({kText, kText}, json::object());
       },
       kUnsupported,
       {"post_processor.single[1]"}},
  };
}

TEST(TokenizerFile, EveryBadFileIsRefusedByTheNameOfItsFault) {
  ASSERT_TRUE(ParseJson(SmallTokenizerJson()).ok());
  int count = 0;
  for (const auto& faults :
       {ModelFaults(), FrameFaults(), PreTokenizerFaults(), TokenFaults()}) {
    for (const BadFile& bad : faults) {
      json root = SmallTokenizerJson();
      bad.change(root);
      const auto tokenizer = ParseJson(root);
      const std::string message(tokenizer.status().message());
      EXPECT_EQ(tokenizer.status().code(), bad.code)
          << bad.named[0] << ": " << tokenizer.status();
      EXPECT_THAT(message, HasSubstr("t.json"));
      for (const std::string& name : bad.named) {
        EXPECT_THAT(message, HasSubstr(name));
      }
      ++count;
    }
  }
  EXPECT_GE(count, 50);
}

TEST(TokenizerFile, TextThatIsNotJsonIsRefused) {
  for (const std::string text :
       {"", "{", "{\"a\":}", "\xff", "{\"version\":\"\xc3\"}", "nan"}) {
    const auto file = ParseTokenizerFile(text, "t.json");
    EXPECT_EQ(file.status().code(), kInvalid) << text;
    EXPECT_THAT(std::string(file.status().message()),
                HasSubstr("t.json: not JSON"));
  }
}

TEST(TokenizerFile, ANestedBombIsRefusedWithoutExhaustingTheStack) {
  const auto file = ParseTokenizerFile(std::string(1 << 20, '['), "t.json");
  EXPECT_EQ(file.status().code(), kInvalid);
}

}  // namespace
}  // namespace trunkline::model
