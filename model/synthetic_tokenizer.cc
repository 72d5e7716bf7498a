#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "model/synthesize.h"

namespace trunkline::model {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kSpecialTokens = 3;
constexpr int64_t kByteTokens = 256;

std::string Utf8(uint32_t code) {  // below U+0800
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xc0 | (code >> 6)),
          static_cast<char>(0x80 | (code & 0x3f))};
}

// The alphabet of byte-level BPE: printable bytes stand for themselves, the
// others for the characters from U+0100 on, in order.
ordered_json ByteVocabulary() {
  ordered_json vocabulary;
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < kByteTokens; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7e) ||
                           (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    vocabulary[Utf8(printable ? byte : next)] = kSpecialTokens + byte;
    if (!printable) ++next;
  }
  return vocabulary;
}

// aa, ab, ..., zz, aaa, ...: no two numbers give one word, and no word is a
// single byte.
std::string Word(int64_t number) {
  constexpr int64_t kLetters = 26;
  int64_t length = 2;
  int64_t words = kLetters * kLetters;
  while (number >= words) {
    number -= words;
    words *= kLetters;
    ++length;
  }
  std::string word(static_cast<size_t>(length), 'a');
  for (int64_t i = length - 1; i >= 0; --i) {
    word[static_cast<size_t>(i)] = static_cast<char>('a' + number % kLetters);
    number /= kLetters;
  }
  return word;
}

}  // namespace

absl::StatusOr<std::string> SyntheticTokenizerJson(int64_t vocab_size) {
  if (vocab_size < kSpecialTokens + kByteTokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("vocab_size ", vocab_size, " is too small for a ",
                     "byte-level tokenizer: at least ",
                     kSpecialTokens + kByteTokens, " are needed"));
  }
  ordered_json vocabulary = ByteVocabulary();
  std::string words;  // appended as text: a large ordered object is slow
  for (int64_t id = kSpecialTokens + kByteTokens; id < vocab_size; ++id) {
    absl::StrAppend(&words, ",\"", Word(id - kSpecialTokens - kByteTokens),
                    "\":", id);
  }
  std::string vocabulary_text = vocabulary.dump();
  vocabulary_text.insert(vocabulary_text.size() - 1, words);

  ordered_json added = ordered_json::array();
  const char* const special[] = {"<unk>", "<s>", "</s>"};
  for (int64_t id = 0; id < kSpecialTokens; ++id) {
    added.push_back({{"id", id},
                     {"content", special[id]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const ordered_json byte_level = {{"type", "ByteLevel"},
                                   {"add_prefix_space", false},
                                   {"trim_offsets", true},
                                   {"use_regex", false}};
  const ordered_json split = {
      {"type", "Split"},
      {"pattern", {{"Regex", "\\s?\\p{L}+|\\p{N}|[^\\s\\p{L}\\p{N}]+|\\s+"}}},
      {"behavior", "Isolated"},
      {"invert", false}};
  const ordered_json pre_tokenizer = {
      {"type", "Sequence"},
      {"pretokenizers", ordered_json::array({split, byte_level})}};
  return absl::StrCat(
      R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":)",
      added.dump(), R"(,"normalizer":null,"pre_tokenizer":)",
      pre_tokenizer.dump(), R"(,"post_processor":null,"decoder":)",
      byte_level.dump(),
      R"(,"model":{"type":"BPE","dropout":null,"unk_token":null,)",
      R"("continuing_subword_prefix":null,"end_of_word_suffix":null,)",
      R"("fuse_unk":false,"byte_fallback":false,"ignore_merges":false,)",
      R"("vocab":)", vocabulary_text, R"(,"merges":[]}})", "\n");
}

}  // namespace trunkline::model
