#include "model/tokenizer_file.h"

#include <initializer_list>
#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace trunkline::model {
namespace {

using nlohmann::json;

// What ByteLevel splits by when use_regex is set: GPT-2's pattern.
constexpr absl::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// Sequences inside sequences: real files have one level.
constexpr int kNestingMax = 8;
constexpr size_t kShownValueMax = 60;

std::string Shown(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > kShownValueMax) {
    text.resize(kShownValueMax);
    text += "...";
  }
  return text;
}

std::string Place(absl::string_view where) {
  return where.empty() ? "top level" : std::string(where);
}

absl::Status Invalid(absl::string_view where, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(Place(where), ": ", what));
}

absl::Status Unsupported(absl::string_view where, absl::string_view what) {
  return absl::UnimplementedError(
      absl::StrCat(where, ": ", what, " is not supported"));
}

std::string Field(absl::string_view where, absl::string_view name) {
  return where.empty() ? std::string(name) : absl::StrCat(where, ".", name);
}

// The field, or null when it is absent.
const json& Get(const json& object, const char* name) {
  static const json* const null = new json();
  const auto found = object.find(name);
  return found == object.end() ? *null : *found;
}

absl::Status CheckObject(const json& value, absl::string_view where) {
  if (value.is_object()) return absl::OkStatus();
  return Invalid(where,
                 absl::StrCat("expected an object, found ", Shown(value)));
}

// A field that this reader does not know may change the tokens: not ignored.
absl::Status CheckFields(const json& object, absl::string_view where,
                         std::initializer_list<absl::string_view> known) {
  TL_RETURN_IF_ERROR(CheckObject(object, where));
  for (const auto& [name, value] : object.items()) {
    bool found = false;
    for (const absl::string_view k : known) found = found || k == name;
    if (!found) {
      return Unsupported(Field(where, name), absl::StrCat("the unknown field (",
                                                          Shown(value), ")"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> GetBool(const json& object, absl::string_view where,
                             const char* name, bool fallback) {
  const json& value = Get(object, name);
  if (value.is_null()) return fallback;
  if (value.is_boolean()) return value.get<bool>();
  return Invalid(Field(where, name),
                 absl::StrCat("expected true or false, found ", Shown(value)));
}

absl::StatusOr<std::string> GetString(const json& object,
                                      absl::string_view where,
                                      const char* name) {
  const json& value = Get(object, name);
  if (value.is_string()) return value.get<std::string>();
  return Invalid(Field(where, name),
                 absl::StrCat("expected a string, found ", Shown(value)));
}

absl::StatusOr<int32_t> TokenId(const json& value, absl::string_view where) {
  if (!value.is_number_integer() || value < 0 || value > kTokenIdMax) {
    return Invalid(where, absl::StrCat("expected a token id from 0 to ",
                                       kTokenIdMax, ", found ", Shown(value)));
  }
  return value.get<int32_t>();
}

// Fields that mean "off" when null, false, 0 or "".
absl::Status CheckOff(const json& object, absl::string_view where,
                      std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const json& value = Get(object, name);
    if (value.is_null() || value == false || value == "" ||
        (value.is_number() && value == 0)) {
      continue;
    }
    return Unsupported(Field(where, name), Shown(value));
  }
  return absl::OkStatus();
}

// "a b" or ["a", "b"]. A leading "#version" line is not a merge.
absl::Status ReadMerges(const json& merges, TokenizerFile* out) {
  if (!merges.is_array()) {
    return Invalid("model.merges",
                   absl::StrCat("expected a list, found ", Shown(merges)));
  }
  out->merges.reserve(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    const json& merge = merges[i];
    std::string left, right;
    if (merge.is_string()) {
      const std::string& text = merge.get_ref<const std::string&>();
      if (absl::StartsWith(text, "#version")) continue;
      const size_t space = text.find(' ');
      if (space != std::string::npos &&
          text.find(' ', space + 1) == std::string::npos) {
        left = text.substr(0, space);
        right = text.substr(space + 1);
      }
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      left = merge[0].get<std::string>();
      right = merge[1].get<std::string>();
    }
    if (left.empty() || right.empty()) {
      return Invalid(absl::StrCat("model.merges[", i, "]"),
                     absl::StrCat("expected \"a b\" or [\"a\", \"b\"], found ",
                                  Shown(merge)));
    }
    out->merges.emplace_back(std::move(left), std::move(right));
  }
  return absl::OkStatus();
}

absl::Status ReadModel(const json& model, TokenizerFile* out) {
  TL_RETURN_IF_ERROR(CheckObject(model, "model"));
  const json& type = Get(model, "type");
  // Old files leave the type out; merges are what only BPE has.
  const bool old_bpe = type.is_null() && model.contains("merges");
  if (type != "BPE" && !old_bpe) {
    return Unsupported("model.type", Shown(type));
  }
  TL_RETURN_IF_ERROR(
      CheckFields(model, "model",
                  {"type", "dropout", "unk_token", "continuing_subword_prefix",
                   "end_of_word_suffix", "fuse_unk", "byte_fallback",
                   "ignore_merges", "vocab", "merges"}));
  TL_RETURN_IF_ERROR(
      CheckOff(model, "model",
               {"dropout", "continuing_subword_prefix", "end_of_word_suffix",
                "fuse_unk", "byte_fallback"}));
  TL_ASSIGN_OR_RETURN(out->ignore_merges,
                      GetBool(model, "model", "ignore_merges", false));
  const json& vocab = Get(model, "vocab");
  if (!vocab.is_object()) {
    return Invalid("model.vocab",
                   absl::StrCat("expected an object, found ", Shown(vocab)));
  }
  out->vocab.reserve(vocab.size());
  for (const auto& [spelling, value] : vocab.items()) {
    TL_ASSIGN_OR_RETURN(
        const int32_t id,
        TokenId(value, absl::StrCat("model.vocab[\"", spelling, "\"]")));
    out->vocab.emplace_back(spelling, id);
  }
  const json& unk = Get(model, "unk_token");
  // Every byte has a token, so the unknown token is never used; it may be
  // named.
  if (!unk.is_null() && !unk.is_string()) {
    return Invalid("model.unk_token",
                   absl::StrCat("expected a string, found ", Shown(unk)));
  }
  if (unk.is_string() && !vocab.contains(unk.get<std::string>())) {
    return Invalid("model.unk_token",
                   absl::StrCat(Shown(unk), " is not in model.vocab"));
  }
  return ReadMerges(Get(model, "merges"), out);
}

absl::Status ReadAddedTokens(const json& tokens, TokenizerFile* out) {
  if (tokens.is_null()) return absl::OkStatus();
  if (!tokens.is_array()) {
    return Invalid("added_tokens",
                   absl::StrCat("expected a list, found ", Shown(tokens)));
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    const json& t = tokens[i];
    const std::string where = absl::StrCat("added_tokens[", i, "]");
    TL_RETURN_IF_ERROR(CheckFields(t, where,
                                   {"id", "content", "single_word", "lstrip",
                                    "rstrip", "normalized", "special"}));
    AddedToken token;
    TL_ASSIGN_OR_RETURN(token.id, TokenId(Get(t, "id"), Field(where, "id")));
    TL_ASSIGN_OR_RETURN(token.content, GetString(t, where, "content"));
    TL_ASSIGN_OR_RETURN(token.special, GetBool(t, where, "special", false));
    TL_ASSIGN_OR_RETURN(token.single_word,
                        GetBool(t, where, "single_word", false));
    TL_ASSIGN_OR_RETURN(token.lstrip, GetBool(t, where, "lstrip", false));
    TL_ASSIGN_OR_RETURN(token.rstrip, GetBool(t, where, "rstrip", false));
    TL_ASSIGN_OR_RETURN(token.normalized,
                        GetBool(t, where, "normalized", !token.special));
    out->added_tokens.push_back(std::move(token));
  }
  return absl::OkStatus();
}

absl::Status ReadSplit(const json& split, absl::string_view where,
                       TokenizerFile* out) {
  TL_RETURN_IF_ERROR(
      CheckFields(split, where, {"type", "pattern", "behavior", "invert"}));
  TL_RETURN_IF_ERROR(CheckOff(split, where, {"invert"}));
  const json& behavior = Get(split, "behavior");
  if (behavior != "Isolated") {
    return Unsupported(Field(where, "behavior"), Shown(behavior));
  }
  const json& pattern = Get(split, "pattern");
  const std::string pattern_where = Field(where, "pattern");
  TL_RETURN_IF_ERROR(CheckFields(pattern, pattern_where, {"Regex", "String"}));
  if (pattern.size() != 1) {
    return Invalid(pattern_where,
                   absl::StrCat("expected one of Regex and String, found ",
                                Shown(pattern)));
  }
  PreTokenizerStep step;
  const bool regex = pattern.contains("Regex");
  step.kind = regex ? PreTokenizerStep::Kind::kSplitPattern
                    : PreTokenizerStep::Kind::kSplitString;
  TL_ASSIGN_OR_RETURN(step.pattern, GetString(pattern, pattern_where,
                                              regex ? "Regex" : "String"));
  out->steps.push_back(std::move(step));
  return absl::OkStatus();
}

absl::Status ReadByteLevel(const json& byte_level, absl::string_view where,
                           TokenizerFile* out) {
  TL_RETURN_IF_ERROR(
      CheckFields(byte_level, where,
                  {"type", "add_prefix_space", "trim_offsets", "use_regex"}));
  TL_ASSIGN_OR_RETURN(const bool prefix_space,
                      GetBool(byte_level, where, "add_prefix_space", true));
  TL_ASSIGN_OR_RETURN(const bool use_regex,
                      GetBool(byte_level, where, "use_regex", true));
  if (prefix_space) {
    out->steps.push_back({PreTokenizerStep::Kind::kPrefixSpace, ""});
  }
  if (use_regex) {
    out->steps.push_back(
        {PreTokenizerStep::Kind::kSplitPattern, std::string(kGpt2Pattern)});
  }
  return absl::OkStatus();
}

absl::Status ReadPreTokenizer(const json& value, const std::string& where,
                              int depth, bool* byte_level, TokenizerFile* out) {
  TL_RETURN_IF_ERROR(CheckObject(value, where));
  if (depth > kNestingMax) {
    return Unsupported(
        where, absl::StrCat("a sequence nested deeper than ", kNestingMax));
  }
  const json& type = Get(value, "type");
  if (type == "Sequence") {
    TL_RETURN_IF_ERROR(CheckFields(value, where, {"type", "pretokenizers"}));
    const std::string list_where = Field(where, "pretokenizers");
    const json& list = Get(value, "pretokenizers");
    if (!list.is_array()) {
      return Invalid(list_where,
                     absl::StrCat("expected a list, found ", Shown(list)));
    }
    for (size_t i = 0; i < list.size(); ++i) {
      TL_RETURN_IF_ERROR(ReadPreTokenizer(list[i],
                                          absl::StrCat(list_where, "[", i, "]"),
                                          depth + 1, byte_level, out));
    }
    return absl::OkStatus();
  }
  if (type != "Split" && type != "ByteLevel") {
    return Unsupported(Field(where, "type"), Shown(type));
  }
  if (*byte_level) {  // it would see the byte alphabet, not the text
    return Unsupported(where, "a step after ByteLevel");
  }
  if (type == "Split") return ReadSplit(value, where, out);
  *byte_level = true;
  return ReadByteLevel(value, where, out);
}

// One id list of the template's special_tokens.
absl::StatusOr<std::vector<int32_t>> SpecialTokenIds(const json& special_tokens,
                                                     const std::string& name,
                                                     absl::string_view where) {
  const json& entry = special_tokens.is_object()
                          ? Get(special_tokens, name.c_str())
                          : special_tokens;
  const json& list = entry.is_object() ? Get(entry, "ids") : entry;
  if (!list.is_array()) {
    return Invalid(
        where, absl::StrCat("special_tokens has no ids for \"", name, "\""));
  }
  std::vector<int32_t> ids;
  for (const json& value : list) {
    TL_ASSIGN_OR_RETURN(const int32_t id, TokenId(value, where));
    ids.push_back(id);
  }
  return ids;
}

absl::Status ReadTemplate(const json& value, const std::string& where,
                          TokenizerFile* out) {
  TL_RETURN_IF_ERROR(
      CheckFields(value, where, {"type", "single", "pair", "special_tokens"}));
  const std::string single_where = Field(where, "single");
  const json& single = Get(value, "single");
  if (!single.is_array()) {
    return Invalid(single_where,
                   absl::StrCat("expected a list, found ", Shown(single)));
  }
  std::vector<int32_t> before, after;
  bool text_seen = false;
  for (size_t i = 0; i < single.size(); ++i) {
    const std::string item_where = absl::StrCat(single_where, "[", i, "]");
    const json& item = single[i];
    TL_RETURN_IF_ERROR(
        CheckFields(item, item_where, {"Sequence", "SpecialToken"}));
    if (item.size() == 1 && item.contains("Sequence")) {
      if (text_seen || !item["Sequence"].is_object() ||
          Get(item["Sequence"], "id") != "A") {
        return Unsupported(item_where, Shown(item));
      }
      text_seen = true;
      continue;
    }
    if (item.size() != 1 || !item.begin()->is_object()) {
      return Invalid(item_where, absl::StrCat("found ", Shown(item)));
    }
    TL_ASSIGN_OR_RETURN(const std::string name,
                        GetString(item["SpecialToken"], item_where, "id"));
    TL_ASSIGN_OR_RETURN(
        const std::vector<int32_t> ids,
        SpecialTokenIds(Get(value, "special_tokens"), name, item_where));
    std::vector<int32_t>& side = text_seen ? after : before;
    side.insert(side.end(), ids.begin(), ids.end());
  }
  if (!text_seen) return Unsupported(single_where, "a template without text");
  // A later processor of a sequence wraps what the earlier ones made.
  out->prefix_ids.insert(out->prefix_ids.begin(), before.begin(), before.end());
  out->suffix_ids.insert(out->suffix_ids.end(), after.begin(), after.end());
  return absl::OkStatus();
}

absl::Status ReadPostProcessor(const json& value, const std::string& where,
                               int depth, TokenizerFile* out) {
  if (value.is_null()) return absl::OkStatus();
  TL_RETURN_IF_ERROR(CheckObject(value, where));
  if (depth > kNestingMax) {
    return Unsupported(
        where, absl::StrCat("a sequence nested deeper than ", kNestingMax));
  }
  const json& type = Get(value, "type");
  if (type == "ByteLevel") return absl::OkStatus();  // only moves offsets
  if (type == "TemplateProcessing") return ReadTemplate(value, where, out);
  if (type != "Sequence") return Unsupported(Field(where, "type"), Shown(type));
  TL_RETURN_IF_ERROR(CheckFields(value, where, {"type", "processors"}));
  const json& list = Get(value, "processors");
  const std::string list_where = Field(where, "processors");
  if (!list.is_array()) {
    return Invalid(list_where,
                   absl::StrCat("expected a list, found ", Shown(list)));
  }
  for (size_t i = 0; i < list.size(); ++i) {
    TL_RETURN_IF_ERROR(ReadPostProcessor(
        list[i], absl::StrCat(list_where, "[", i, "]"), depth + 1, out));
  }
  return absl::OkStatus();
}

absl::Status ReadFile(const json& root, TokenizerFile* out) {
  TL_RETURN_IF_ERROR(CheckFields(
      root, "",
      {"version", "truncation", "padding", "added_tokens", "normalizer",
       "pre_tokenizer", "post_processor", "decoder", "model"}));
  const json& version = Get(root, "version");
  if (!version.is_null() && version != "1.0") {
    return Unsupported("version", Shown(version));
  }
  for (const char* name : {"truncation", "padding", "normalizer"}) {
    const json& value = Get(root, name);
    if (value.is_null()) continue;
    const json& type = value.is_object() ? Get(value, "type") : value;
    return Unsupported(name, Shown(type.is_null() ? value : type));
  }
  TL_RETURN_IF_ERROR(ReadModel(Get(root, "model"), out));
  TL_RETURN_IF_ERROR(ReadAddedTokens(Get(root, "added_tokens"), out));
  bool byte_level = false;
  TL_RETURN_IF_ERROR(ReadPreTokenizer(Get(root, "pre_tokenizer"),
                                      "pre_tokenizer", 0, &byte_level, out));
  if (!byte_level) {
    return Unsupported("pre_tokenizer", "a tokenizer without ByteLevel");
  }
  TL_RETURN_IF_ERROR(
      ReadPostProcessor(Get(root, "post_processor"), "post_processor", 0, out));
  const json& decoder = Get(root, "decoder");
  const json& type = decoder.is_object() ? Get(decoder, "type") : decoder;
  if (type != "ByteLevel") return Unsupported("decoder", Shown(type));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenizerFile> ParseTokenizerFile(absl::string_view json_text,
                                                 const std::string& file) {
  json root;
  try {
    root = json::parse(json_text.begin(), json_text.end());
  } catch (const json::exception& e) {
    // The message repeats the token it failed on, which may be the whole file.
    return absl::InvalidArgumentError(absl::StrCat(
        file, ": not JSON: ", absl::string_view(e.what()).substr(0, 200)));
  }
  TokenizerFile out;
  const absl::Status status = ReadFile(root, &out);
  if (!status.ok()) return Annotate(status, file);
  return out;
}

}  // namespace trunkline::model
