#pragma once

// The vocabulary: spellings in the byte alphabet of GPT-2, as the bytes they
// stand for, by id and back.

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/bpe.h"
#include "model/tokenizer_added.h"
#include "model/tokenizer_file.h"

namespace trunkline::model {

// GPT-2 spells byte b as the character b where that prints, else as one of
// U+0100 and on. False when a character of `spelling` spells no byte; then
// *bytes is unspecified.
bool BytesOfSpelling(absl::string_view spelling, std::string* bytes);
std::string SpellingOfBytes(absl::string_view bytes);

// Immutable after Build; safe to use from many threads.
class TokenizerVocabulary {
 public:
  // INVALID_ARGUMENT: two tokens of one id, one token with two ids, a merge of
  // tokens that are not in the vocabulary, a byte without a token.
  static absl::StatusOr<TokenizerVocabulary> Build(const TokenizerFile& file);

  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }
  bool Contains(int32_t id) const {
    return id >= 0 && id < size() && tokens_[id].state != State::kAbsent;
  }
  bool IsSpecial(int32_t id) const {
    return Contains(id) && tokens_[id].state == State::kSpecial;
  }
  absl::string_view Bytes(int32_t id) const { return tokens_[id].bytes; }
  // The token that a whole piece is when merges are ignored, or -1. A special
  // token never comes from ordinary text.
  int32_t WholePiece(absl::string_view bytes) const;

  const std::array<int32_t, 256>& byte_tokens() const { return byte_tokens_; }
  const std::vector<BpeMerges::Merge>& merges() const { return merges_; }

 private:
  enum class State : uint8_t { kAbsent, kOrdinary, kSpecial };
  struct Token {
    std::string bytes;
    State state = State::kAbsent;
  };
  absl::Status AddVocab(const TokenizerFile& file);
  absl::Status AddAddedTokens(const std::vector<AddedToken>& added);
  absl::Status AddMerges(const TokenizerFile& file);
  absl::Status FindByteTokens();
  absl::StatusOr<Token*> Claim(int32_t id, absl::string_view name);

  std::vector<Token> tokens_;
  // By the spelling of model.vocab; emptied when the merges are resolved.
  absl::flat_hash_map<std::string, int32_t> by_spelling_;
  absl::flat_hash_map<std::string, int32_t> by_bytes_;
  std::array<int32_t, 256> byte_tokens_{};
  std::vector<BpeMerges::Merge> merges_;
};

}  // namespace trunkline::model
