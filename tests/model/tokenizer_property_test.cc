#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/random.h"
#include "model/tokenizer.h"
#include "model/tokenizer_pattern.h"
#include "tests/model/tokenizer_json_builder.h"

namespace trunkline::model {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

constexpr char kDemoFile[] = TRUNKLINE_SOURCE_DIR "/models/demo/tokenizer.json";

std::shared_ptr<const Tokenizer> Demo() {
  static const auto demo = *Tokenizer::Load(kDemoFile);
  return demo;
}

void AppendUtf8(char32_t c, std::string* text) {
  if (c < 0x80) {
    text->push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    text->push_back(static_cast<char>(0xC0 | c >> 6));
    text->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else if (c < 0x10000) {
    text->push_back(static_cast<char>(0xE0 | c >> 12));
    text->push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
    text->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else {
    text->push_back(static_cast<char>(0xF0 | c >> 18));
    text->push_back(static_cast<char>(0x80 | (c >> 12 & 0x3F)));
    text->push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
    text->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  }
}

// Characters of every kind a pre-tokenizer tells apart, and any scalar value.
std::string RandomText(RandomStream* random, uint64_t length_max) {
  static const std::vector<std::string> kParts = {"a",
                                                  "Q",
                                                  "the",
                                                  " ",
                                                  "  ",
                                                  "\n",
                                                  "\r\n",
                                                  "\t",
                                                  "1",
                                                  "42",
                                                  ".",
                                                  "...",
                                                  "'s",
                                                  "<s>",
                                                  "</think>",
                                                  "/",
                                                  "-",
                                                  "_",
                                                  "\xc3\xa9",
                                                  "\xc2\xa0",
                                                  "\xe2\x80\x83",
                                                  "\xe4\xbd\xa0",
                                                  "e\xcc\x81",
                                                  "\xf0\x9f\x98\x80",
                                                  "\xd9\xa1",
                                                  "\xc7\x85"};
  std::string text;
  for (uint64_t n = random->NextBelow(length_max + 1); n > 0; --n) {
    if (random->NextBelow(4) != 0) {
      text += kParts[random->NextBelow(kParts.size())];
      continue;
    }
    char32_t c = static_cast<char32_t>(random->NextBelow(0x110000));
    if (c >= 0xD800 && c <= 0xDFFF) c = U'\uFFFD';
    AppendUtf8(c, &text);
  }
  return text;
}

TEST(TokenizerProperty, DecodeOfEncodeIsTheText) {
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    RandomStream random(seed);
    const std::string text = RandomText(&random, 60);
    for (const bool parse_special : {false, true}) {
      const auto ids = Demo()->Encode(text, {false, parse_special});
      ASSERT_TRUE(ids.ok()) << "seed " << seed << ": " << ids.status();
      ASSERT_EQ(*Demo()->Decode(*ids, false), text) << "seed " << seed;
    }
  }
}

// The demo's tokens by the definition of BPE, on strings, from the file: shares
// nothing with the tokenizer but the split into pieces.
class NaiveDemo {
 public:
  NaiveDemo() {
    std::ifstream file(kDemoFile);
    const json root = json::parse(file);
    for (const auto& [token, id] : root["model"]["vocab"].items()) {
      vocab_[token] = id;
    }
    for (size_t i = 0; i < root["model"]["merges"].size(); ++i) {
      const json& merge = root["model"]["merges"][i];
      rank_[{merge[0], merge[1]}] = i;
    }
    pattern_ = *TokenizerPattern::Compile(
        root["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
            .get<std::string>());
  }

  Ids Encode(const std::string& text) const {
    Ids ids;
    EXPECT_TRUE(pattern_
                    ->ForEachPart(text,
                                  [&](absl::string_view piece) {
                                    EncodePiece(piece, &ids);
                                    return absl::OkStatus();
                                  })
                    .ok());
    return ids;
  }

 private:
  void EncodePiece(absl::string_view piece, Ids* ids) const {
    std::vector<std::string> parts;
    for (const char byte : piece) {
      parts.push_back(SpellingOfBytes(absl::string_view(&byte, 1)));
    }
    for (;;) {
      size_t best = SIZE_MAX, at = 0;
      for (size_t i = 0; i + 1 < parts.size(); ++i) {
        const auto found = rank_.find({parts[i], parts[i + 1]});
        if (found != rank_.end() && found->second < best) {
          best = found->second;
          at = i;
        }
      }
      if (best == SIZE_MAX) break;
      parts[at] += parts[at + 1];
      parts.erase(parts.begin() + static_cast<ptrdiff_t>(at) + 1);
    }
    for (const std::string& part : parts) ids->push_back(vocab_.at(part));
  }

  std::map<std::string, int32_t> vocab_;
  std::map<std::pair<std::string, std::string>, size_t> rank_;
  std::unique_ptr<TokenizerPattern> pattern_;
};

TEST(TokenizerProperty, EncodeAgreesWithTheNaiveDefinitionOnStrings) {
  const NaiveDemo naive;
  for (uint64_t seed = 0; seed < 1500; ++seed) {
    RandomStream random(seed);
    const std::string text = RandomText(&random, 80);
    const auto ids = Demo()->Encode(text, {false, false});
    ASSERT_TRUE(ids.ok()) << ids.status();
    ASSERT_EQ(*ids, naive.Encode(text)) << "seed " << seed << ": " << text;
  }
}

// Adding a piece boundary token between two texts: each side encodes as alone.
TEST(TokenizerProperty, ASpecialTokenSeparatesTheTextsBesideIt) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    RandomStream random(seed);
    const std::string left = RandomText(&random, 20);
    const std::string right = RandomText(&random, 20);
    Ids expected = *Demo()->Encode(left, {false, true});
    expected.push_back(4);
    const Ids behind = *Demo()->Encode(right, {false, true});
    expected.insert(expected.end(), behind.begin(), behind.end());
    ASSERT_EQ(*Demo()->Encode(left + "<|im_end|>" + right, {false, true}),
              expected)
        << "seed " << seed;
  }
}

double EncodeSeconds(const std::string& text) {
  const auto start = std::chrono::steady_clock::now();
  const auto ids = Demo()->Encode(text, {false, true});
  EXPECT_TRUE(ids.ok()) << ids.status();
  EXPECT_TRUE(!ids.ok() || *Demo()->Decode(*ids, false) == text);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
      .count();
}

// A megabyte of one thing, or of two in turn, from every class of character
// that the pattern mentions. Quadratic behaviour anywhere would take minutes to
// hours per text; the bound leaves room for sanitizers and a busy machine.
TEST(TokenizerProperty, AMegabyteOfAnythingRepeatedIsNotQuadratic) {
  const std::vector<std::string> units = {
      "a",        "A",           "1",
      " ",        "\n",          "\r",
      "\t",       "/",           "!",
      "<",        "<|im_start|", "'",
      "\xc7\x85", "\xca\xb0",    "\xe4\xbd\xa0",
      "\xcc\x81", "\xc2\xa0",    "\xf0\x9f\x98\x80",
      "the ",     "</s"};
  const auto fill = [](const std::string& unit, size_t bytes) {
    std::string text;
    while (text.size() < bytes) text += unit;
    return text;
  };
  for (const std::string& a : units) {
    EXPECT_LT(EncodeSeconds(fill(a, 1 << 20)), 20.0) << a;
    for (const std::string& b : units) {
      ASSERT_LT(EncodeSeconds(fill(a + b, 1 << 16)), 10.0) << a << b;
      ASSERT_LT(EncodeSeconds(fill(a, 1 << 15) + fill(b, 1 << 15)), 10.0)
          << a << b;
    }
  }
}

}  // namespace
}  // namespace trunkline::model
