#pragma once

// tokenizer.json as values: what the file says, checked for shape and for
// features that are not supported, not yet put to work.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/tokenizer_added.h"

namespace trunkline::model {

// One step of the pre-tokenizer; they run in order, each on the parts that the
// one before it left.
struct PreTokenizerStep {
  enum class Kind : uint8_t {
    kSplitPattern,  // apart at every match of `pattern`, matches kept
    kSplitString,   // the same for a literal string
    kPrefixSpace,   // a space in front of a part that does not start with one
  };
  Kind kind = Kind::kSplitPattern;
  std::string pattern;
};

struct TokenizerFile {
  std::vector<std::pair<std::string, int32_t>> vocab;  // as spelled, with ids
  std::vector<std::pair<std::string, std::string>> merges;
  bool ignore_merges = false;  // a piece that is in the vocabulary is one token
  std::vector<AddedToken> added_tokens;
  std::vector<PreTokenizerStep> steps;
  std::vector<int32_t> prefix_ids, suffix_ids;  // of the template
};

// UNIMPLEMENTED names the feature, INVALID_ARGUMENT the field and its value;
// both name `file`.
absl::StatusOr<TokenizerFile> ParseTokenizerFile(absl::string_view json_text,
                                                 const std::string& file);

// Ids above this one make a file invalid: tables are as long as the largest id.
constexpr int32_t kTokenIdMax = (1 << 24) - 1;

}  // namespace trunkline::model
