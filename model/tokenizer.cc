#include "model/tokenizer.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/bpe.h"
#include "model/tokenizer_added.h"
#include "model/tokenizer_file.h"
#include "model/tokenizer_pieces.h"
#include "model/tokenizer_utf8.h"
#include "model/tokenizer_vocab.h"

namespace trunkline::model {
namespace {

constexpr size_t kTextBytesMax = size_t{1} << 31;  // positions are 32 bits
// Words repeat; what is longer hardly does.
constexpr size_t kRememberedPieceMax = 64;

class ByteLevelBpe : public Tokenizer {
 public:
  static absl::StatusOr<std::shared_ptr<const Tokenizer>> Build(
      const TokenizerFile& file) {
    TL_ASSIGN_OR_RETURN(TokenizerVocabulary vocabulary,
                        TokenizerVocabulary::Build(file));
    for (const auto* ids : {&file.prefix_ids, &file.suffix_ids}) {
      for (const int32_t id : *ids) {
        if (!vocabulary.Contains(id)) {
          return absl::InvalidArgumentError(absl::StrCat(
              "post_processor: special token id ", id, " is no token's id"));
        }
      }
    }
    TL_ASSIGN_OR_RETURN(AddedTokenSplitter added,
                        AddedTokenSplitter::Build(file.added_tokens));
    absl::StatusOr<PieceSplitter> pieces = PieceSplitter::Build(file.steps);
    if (!pieces.ok()) return Annotate(pieces.status(), "pre_tokenizer");
    auto tokenizer = std::make_shared<ByteLevelBpe>(
        std::move(vocabulary), std::move(added), *std::move(pieces));
    tokenizer->ignore_merges_ = file.ignore_merges;
    tokenizer->prefix_ids_ = file.prefix_ids;
    tokenizer->suffix_ids_ = file.suffix_ids;
    return std::shared_ptr<const Tokenizer>(std::move(tokenizer));
  }

  ByteLevelBpe(TokenizerVocabulary vocabulary, AddedTokenSplitter added,
               PieceSplitter pieces)
      : vocabulary_(std::move(vocabulary)),
        added_(std::move(added)),
        pieces_(std::move(pieces)),
        merges_(vocabulary_.byte_tokens(), vocabulary_.merges()) {}

  absl::StatusOr<std::vector<int32_t>> Encode(
      absl::string_view text, const EncodeOptions& options) const override;
  absl::StatusOr<std::string> Decode(const std::vector<int32_t>& ids,
                                     bool skip_special_tokens) const override;
  absl::StatusOr<absl::string_view> TokenBytes(int32_t id) const override {
    TL_RETURN_IF_ERROR(CheckId(id));
    return vocabulary_.Bytes(id);
  }
  bool IsSpecial(int32_t id) const override {
    return vocabulary_.IsSpecial(id);
  }
  int32_t vocab_size() const override { return vocabulary_.size(); }

 private:
  // What one call of Encode keeps between pieces. Per call, not per tokenizer:
  // no lock, and nothing grows with the number of requests.
  struct Scratch {
    BpeScratch bpe;
    struct Span {
      size_t begin, count;  // in `ids` of the same call
    };
    absl::flat_hash_map<std::string, Span> seen;
  };

  void EncodePiece(absl::string_view piece, Scratch* scratch,
                   std::vector<int32_t>* ids) const;
  absl::Status CheckId(int32_t id) const {
    if (vocabulary_.Contains(id)) return absl::OkStatus();
    return absl::OutOfRangeError(absl::StrCat("token id ", id,
                                              " is not in the vocabulary (",
                                              vocabulary_.size(), " ids)"));
  }

  const TokenizerVocabulary vocabulary_;
  const AddedTokenSplitter added_;
  const PieceSplitter pieces_;
  const BpeMerges merges_;
  bool ignore_merges_ = false;
  std::vector<int32_t> prefix_ids_, suffix_ids_;
};

absl::StatusOr<std::vector<int32_t>> ByteLevelBpe::Encode(
    absl::string_view text, const EncodeOptions& options) const {
  if (text.size() > kTextBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("a text of ", text.size(), " bytes; at most ",
                     kTextBytesMax, " can be tokenized"));
  }
  const size_t broken = FindInvalidUtf8(text);
  if (broken != absl::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("the text is not UTF-8 at byte ", broken));
  }
  std::vector<int32_t> ids;
  if (options.add_special_tokens) ids = prefix_ids_;
  Scratch scratch;
  for (const AddedTokenSplitter::Part& part :
       added_.Split(text, options.parse_special_tokens)) {
    if (part.id >= 0) {
      ids.push_back(part.id);
      continue;
    }
    TL_RETURN_IF_ERROR(
        pieces_.ForEachPiece(part.text, [&](absl::string_view piece) {
          EncodePiece(piece, &scratch, &ids);
          return absl::OkStatus();
        }));
  }
  if (options.add_special_tokens) {
    ids.insert(ids.end(), suffix_ids_.begin(), suffix_ids_.end());
  }
  return ids;
}

void ByteLevelBpe::EncodePiece(absl::string_view piece, Scratch* scratch,
                               std::vector<int32_t>* ids) const {
  if (ignore_merges_) {
    const int32_t whole = vocabulary_.WholePiece(piece);
    if (whole >= 0) {
      ids->push_back(whole);
      return;
    }
  }
  if (piece.size() == 1) {
    ids->push_back(vocabulary_.byte_tokens()[static_cast<uint8_t>(piece[0])]);
    return;
  }
  if (piece.size() > kRememberedPieceMax) {
    merges_.Encode(piece, &scratch->bpe, ids);
    return;
  }
  const auto [entry, is_new] =
      scratch->seen.try_emplace(piece, Scratch::Span{ids->size(), 0});
  Scratch::Span& span = entry->second;
  if (is_new) {
    merges_.Encode(piece, &scratch->bpe, ids);
    span.count = ids->size() - span.begin;
    return;
  }
  for (size_t i = 0; i < span.count; ++i) {
    const int32_t id = (*ids)[span.begin + i];
    ids->push_back(id);
  }
}

absl::StatusOr<std::string> ByteLevelBpe::Decode(
    const std::vector<int32_t>& ids, bool skip_special_tokens) const {
  std::string text;
  for (const int32_t id : ids) {
    TL_RETURN_IF_ERROR(CheckId(id));
    if (skip_special_tokens && vocabulary_.IsSpecial(id)) continue;
    const absl::string_view bytes = vocabulary_.Bytes(id);
    text.append(bytes.data(), bytes.size());
  }
  return text;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Tokenizer>> Tokenizer::Parse(
    absl::string_view json_text, const std::string& file) {
  TL_ASSIGN_OR_RETURN(const TokenizerFile parsed,
                      ParseTokenizerFile(json_text, file));
  auto built = ByteLevelBpe::Build(parsed);
  if (!built.ok()) return Annotate(built.status(), file);
  return built;
}

absl::StatusOr<std::shared_ptr<const Tokenizer>> Tokenizer::Load(
    const std::string& file) {
  std::FILE* stream = std::fopen(file.c_str(), "rb");
  if (stream == nullptr) {
    const int error = errno;
    const std::string message =
        absl::StrCat(file, ": can not be opened: ", std::strerror(error));
    return error == ENOENT || error == ENOTDIR
               ? absl::NotFoundError(message)
               : absl::FailedPreconditionError(message);
  }
  std::string text;
  char buffer[1 << 16];
  for (size_t n; (n = std::fread(buffer, 1, sizeof(buffer), stream)) > 0;) {
    text.append(buffer, n);
  }
  const int error = std::ferror(stream) != 0 ? errno : 0;
  std::fclose(stream);
  if (error != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(file, ": can not be read: ", std::strerror(error)));
  }
  return Parse(text, file);
}

}  // namespace trunkline::model
