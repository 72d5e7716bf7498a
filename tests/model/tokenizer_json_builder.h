#pragma once

// A small tokenizer.json for tests: every byte a token (byte b has id b), then
// tokens made by merges, then added tokens; changed by the test where it wants.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "model/tokenizer.h"
#include "model/tokenizer_vocab.h"

namespace trunkline::model {

// merges: pairs as raw bytes. The i-th makes the token 256 + i unless its bytes
// are a token already.
inline nlohmann::json SmallTokenizerJson(
    const std::vector<std::pair<std::string, std::string>>& merges = {}) {
  nlohmann::json vocab = nlohmann::json::object();
  int32_t next = 0;
  const auto spell = [](const std::string& bytes) {
    return SpellingOfBytes(bytes);
  };
  for (; next < 256; ++next) {
    vocab[spell(std::string(1, static_cast<char>(next)))] = next;
  }
  nlohmann::json merge_list = nlohmann::json::array();
  for (const auto& [left, right] : merges) {
    const std::string joined = spell(left + right);
    if (!vocab.contains(joined)) vocab[joined] = next++;
    merge_list.push_back({spell(left), spell(right)});
  }
  nlohmann::json root;
  root["version"] = "1.0";
  root["truncation"] = nullptr;
  root["padding"] = nullptr;
  root["added_tokens"] = nlohmann::json::array();
  root["normalizer"] = nullptr;
  root["pre_tokenizer"] = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", true}};
  root["post_processor"] = nullptr;
  root["decoder"] = {{"type", "ByteLevel"}};
  root["model"] = {{"type", "BPE"}, {"vocab", vocab}, {"merges", merge_list}};
  return root;
}

inline nlohmann::json AddedTokenJson(int32_t id, const std::string& content,
                                     nlohmann::json flags = {}) {
  nlohmann::json token = {{"id", id},           {"content", content},
                          {"special", false},   {"single_word", false},
                          {"lstrip", false},    {"rstrip", false},
                          {"normalized", false}};
  if (flags.is_object()) token.update(flags);
  return token;
}

inline absl::StatusOr<std::shared_ptr<const Tokenizer>> ParseJson(
    const nlohmann::json& root) {
  return Tokenizer::Parse(root.dump(), "t.json");
}

}  // namespace trunkline::model
