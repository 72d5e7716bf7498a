#pragma once

// Hugging Face tokenizer.json: byte-level BPE with a Split pre-tokenizer
// pattern (PCRE2, UTF and Unicode properties), added and special tokens, the
// template post-processor. Immutable after load and safe to use from many
// threads.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace trunkline::model {

class Tokenizer {
 public:
  struct EncodeOptions {
    bool add_special_tokens =
        true;  // what the template post-processor adds, when there is one
    bool parse_special_tokens =
        true;  // text that spells a special token becomes that token
  };

  // UNIMPLEMENTED naming the feature for what is not supported,
  // INVALID_ARGUMENT for a broken file.
  static absl::StatusOr<std::shared_ptr<const Tokenizer>> Load(
      const std::string& file);
  static absl::StatusOr<std::shared_ptr<const Tokenizer>> Parse(
      absl::string_view json_text, const std::string& file);

  virtual ~Tokenizer() = default;
  // INVALID_ARGUMENT (with the byte offset) when text is not UTF-8.
  virtual absl::StatusOr<std::vector<int32_t>> Encode(
      absl::string_view text, const EncodeOptions& options) const = 0;
  // Bytes of the tokens; special tokens are left out when asked. OUT_OF_RANGE
  // for an unknown id.
  virtual absl::StatusOr<std::string> Decode(
      const std::vector<int32_t>& ids, bool skip_special_tokens) const = 0;
  // Raw bytes of one token (not necessarily whole UTF-8). OUT_OF_RANGE for an
  // unknown id.
  virtual absl::StatusOr<absl::string_view> TokenBytes(int32_t id) const = 0;
  virtual bool IsSpecial(int32_t id) const = 0;
  virtual int32_t vocab_size() const = 0;  // largest id + 1
};

}  // namespace trunkline::model
