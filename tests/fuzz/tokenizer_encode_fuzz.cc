// Any bytes as text: refused when they are not UTF-8, else given back by
// Decode. And any bytes as a stream of tokens: the same text however they are
// cut.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/check.h"
#include "model/text_stream.h"
#include "model/tokenizer.h"
#include "model/tokenizer_utf8.h"
#include "tests/model/tokenizer_json_builder.h"

namespace {

using trunkline::model::AddedTokenJson;
using trunkline::model::TextStream;
using trunkline::model::Tokenizer;

const Tokenizer& SmallTokenizer() {
  static const auto tokenizer = [] {
    nlohmann::json root = trunkline::model::SmallTokenizerJson(
        {{"a", "a"}, {"aa", "aa"}, {" ", "t"}, {"h", "e"}, {" t", "he"}});
    root["added_tokens"] = {AddedTokenJson(300, "<s>", {{"special", true}}),
                            AddedTokenJson(301, "<r>", {{"rstrip", true}}),
                            AddedTokenJson(302, "<l>", {{"lstrip", true}}),
                            AddedTokenJson(303, "w", {{"single_word", true}})};
    // "w" is a byte's token already: its id is that byte.
    root["added_tokens"][3]["id"] = static_cast<int>('w');
    auto parsed = trunkline::model::ParseJson(root);
    TL_CHECK(parsed.ok()) << parsed.status();
    return *parsed;
  }();
  return *tokenizer;
}

std::string Streamed(absl::string_view bytes, size_t step,
                     const std::vector<std::string>& stops) {
  TextStream stream(stops);
  std::string text;
  while (!bytes.empty()) {
    const size_t n = std::min(step, bytes.size());
    const TextStream::Piece piece = stream.Append(bytes.substr(0, n));
    TL_CHECK(trunkline::model::FindInvalidUtf8(piece.text) ==
             absl::string_view::npos);
    text += piece.text;
    bytes.remove_prefix(n);
  }
  return text + stream.Finish();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  const bool is_text =
      trunkline::model::FindInvalidUtf8(bytes) == absl::string_view::npos;
  // Stripping tokens take white space that Decode can not give back.
  const bool strips = bytes.find("<r>") != absl::string_view::npos ||
                      bytes.find("<l>") != absl::string_view::npos;
  for (const bool parse_special : {false, true}) {
    const auto ids = SmallTokenizer().Encode(bytes, {false, parse_special});
    TL_CHECK(ids.ok() == is_text) << ids.status();
    if (!ids.ok() || strips) continue;
    TL_CHECK(*SmallTokenizer().Decode(*ids, false) == bytes);
  }
  for (const std::vector<std::string>& stops :
       {std::vector<std::string>{}, {"ab", "\n\n", "aab"}}) {
    const std::string whole = Streamed(bytes, SIZE_MAX, stops);
    TL_CHECK(Streamed(bytes, 1, stops) == whole);
    TL_CHECK(Streamed(bytes, 3, stops) == whole);
  }
  return 0;
}
