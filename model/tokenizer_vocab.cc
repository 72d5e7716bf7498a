#include "model/tokenizer_vocab.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "model/tokenizer_utf8.h"

namespace trunkline::model {
namespace {

constexpr int kAlphabetCharacters = 0x144;  // U+0000 .. U+0143

struct ByteAlphabet {
  std::array<char32_t, 256> character{};
  std::array<int16_t, kAlphabetCharacters> byte{};  // -1: spells no byte
};

const ByteAlphabet& Alphabet() {
  static const ByteAlphabet alphabet = [] {
    ByteAlphabet a;
    a.byte.fill(-1);
    char32_t next = 0x100;
    for (int b = 0; b < 256; ++b) {
      const bool prints = (b >= 0x21 && b <= 0x7E) ||
                          (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
      a.character[b] = prints ? static_cast<char32_t>(b) : next++;
      a.byte[a.character[b]] = static_cast<int16_t>(b);
    }
    return a;
  }();
  return alphabet;
}

// C0, C1 and F5 to FF stand in no UTF-8 text, so they need no token.
bool OccursInText(int byte) {
  return byte != 0xC0 && byte != 0xC1 && byte < 0xF5;
}

}  // namespace

bool BytesOfSpelling(absl::string_view spelling, std::string* bytes) {
  bytes->clear();
  while (!spelling.empty()) {
    const char32_t c = FrontCodePoint(spelling);
    if (c >= kAlphabetCharacters || Alphabet().byte[c] < 0) return false;
    bytes->push_back(static_cast<char>(Alphabet().byte[c]));
    spelling.remove_prefix(c < 0x80 ? 1 : 2);
  }
  return true;
}

std::string SpellingOfBytes(absl::string_view bytes) {
  std::string spelling;
  for (const char byte : bytes) {
    const char32_t c = Alphabet().character[static_cast<uint8_t>(byte)];
    if (c < 0x80) {
      spelling.push_back(static_cast<char>(c));
    } else {  // never past U+0143
      spelling.push_back(static_cast<char>(0xC0 | c >> 6));
      spelling.push_back(static_cast<char>(0x80 | (c & 0x3F)));
    }
  }
  return spelling;
}

absl::StatusOr<TokenizerVocabulary::Token*> TokenizerVocabulary::Claim(
    int32_t id, absl::string_view name) {
  if (id >= size()) tokens_.resize(static_cast<size_t>(id) + 1);
  Token& token = tokens_[id];
  if (token.state != State::kAbsent) {
    return absl::InvalidArgumentError(absl::StrCat("id ", id, " belongs to \"",
                                                   SpellingOfBytes(token.bytes),
                                                   "\" and to \"", name, "\""));
  }
  token.state = State::kOrdinary;
  return &token;
}

absl::Status TokenizerVocabulary::AddVocab(const TokenizerFile& file) {
  for (const auto& [spelling, id] : file.vocab) {
    TL_ASSIGN_OR_RETURN(Token * token, Claim(id, spelling));
    by_spelling_.emplace(spelling, id);
    if (BytesOfSpelling(spelling, &token->bytes)) {
      by_bytes_.emplace(token->bytes, id);
    } else {
      // No merge makes it, so only an added token can be it: its own text.
      token->bytes = spelling;
    }
  }
  return absl::OkStatus();
}

absl::Status TokenizerVocabulary::AddAddedTokens(
    const std::vector<AddedToken>& added) {
  absl::flat_hash_map<std::string, int32_t> seen;
  for (const AddedToken& a : added) {
    const auto in_vocab = by_spelling_.find(a.content);
    const auto [before, is_new] = seen.emplace(a.content, a.id);
    const int32_t other =
        in_vocab != by_spelling_.end() ? in_vocab->second : before->second;
    if (other != a.id) {
      return absl::InvalidArgumentError(
          absl::StrCat("added token \"", a.content, "\" has the ids ", a.id,
                       " and ", other));
    }
    if (!is_new) {
      return absl::InvalidArgumentError(
          absl::StrCat("added token \"", a.content, "\" is listed twice"));
    }
    if (in_vocab == by_spelling_.end()) {
      // Found as plain text, so plain text is what it decodes to. (One that is
      // in model.vocab has its bytes already.)
      TL_ASSIGN_OR_RETURN(Token * token, Claim(a.id, a.content));
      token->bytes = a.content;
    }
    if (a.special) tokens_[a.id].state = State::kSpecial;
  }
  return absl::OkStatus();
}

absl::Status TokenizerVocabulary::AddMerges(const TokenizerFile& file) {
  merges_.reserve(file.merges.size());
  for (size_t i = 0; i < file.merges.size(); ++i) {
    const auto& [left, right] = file.merges[i];
    const std::string joined = left + right;
    std::array<int32_t, 3> ids{};
    for (int k = 0; k < 3; ++k) {
      const std::string& spelling = k == 0 ? left : k == 1 ? right : joined;
      const auto found = by_spelling_.find(spelling);
      if (found == by_spelling_.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat("model.merges[", i, "] (\"", left, "\", \"", right,
                         "\"): \"", spelling, "\" is not in model.vocab"));
      }
      ids[k] = found->second;
    }
    merges_.push_back({ids[0], ids[1], ids[2]});
  }
  return absl::OkStatus();
}

absl::Status TokenizerVocabulary::FindByteTokens() {
  for (int b = 0; b < 256; ++b) {
    const auto found = by_bytes_.find(std::string(1, static_cast<char>(b)));
    byte_tokens_[b] = found == by_bytes_.end() ? -1 : found->second;
    if (byte_tokens_[b] < 0 && OccursInText(b)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "model.vocab has no token for byte 0x%02x (\"%s\")", b,
          SpellingOfBytes(std::string(1, static_cast<char>(b)))));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<TokenizerVocabulary> TokenizerVocabulary::Build(
    const TokenizerFile& file) {
  TokenizerVocabulary vocabulary;
  TL_RETURN_IF_ERROR(vocabulary.AddVocab(file));
  TL_RETURN_IF_ERROR(vocabulary.FindByteTokens());
  TL_RETURN_IF_ERROR(vocabulary.AddAddedTokens(file.added_tokens));
  TL_RETURN_IF_ERROR(vocabulary.AddMerges(file));
  vocabulary.by_spelling_ = {};
  return vocabulary;
}

int32_t TokenizerVocabulary::WholePiece(absl::string_view bytes) const {
  const auto found = by_bytes_.find(bytes);
  return found == by_bytes_.end() || IsSpecial(found->second) ? -1
                                                              : found->second;
}

}  // namespace trunkline::model
