#include "model/json_text.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace trunkline::model {
namespace {

using nlohmann::json;

// The non-finite literals become strings of the same length, so that every
// position in a later error still points into the original text. U+007F marks
// them: the scan refuses that character in the file's own strings, so no real
// string can be taken for a literal.
struct Literal {
  absl::string_view text;
  absl::string_view replacement;
  absl::string_view value;  // of the string once parsed
};
constexpr Literal kLiterals[] = {
    {"-Infinity", "\"\x7f-inf\x7f\" ",
     "\x7f"
     "-inf\x7f"},
    {"Infinity", "\"\x7f+inf\x7f\"",
     "\x7f"
     "+inf\x7f"},
    {"NaN", "\"\x7f\"", "\x7f"},
};

absl::Status ErrorAt(absl::string_view text, size_t position,
                     const std::string& file, absl::string_view what) {
  position = std::min(position, text.size());
  const absl::string_view before = text.substr(0, position);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t newline = before.rfind('\n');
  const size_t column =
      newline == absl::string_view::npos ? position + 1 : position - newline;
  return absl::InvalidArgumentError(
      absl::StrCat(file, ":", line, ":", column, ": ", what));
}

// One pass outside and inside strings: literals, nesting depth, U+007F.
class Scan {
 public:
  Scan(absl::string_view text, const std::string& file, int depth_max)
      : text_(text), file_(file), depth_max_(depth_max), out_(text) {}

  absl::StatusOr<std::string> Run() {
    for (size_t i = 0; i < text_.size();) {
      const char c = text_[i];
      if (c == '"') {
        absl::Status status = SkipString(&i);
        if (!status.ok()) return status;
        continue;
      }
      if (c == '{' || c == '[') {
        if (++depth_ > depth_max_) {
          return ErrorAt(
              text_, i, file_,
              absl::StrCat("nested more than ", depth_max_, " levels deep"));
        }
      } else if (c == '}' || c == ']') {
        --depth_;
      } else if (c == '-' || c == 'I' || c == 'N') {
        i += ReplaceLiteral(i);
        continue;
      }
      ++i;
    }
    return std::move(out_);
  }

 private:
  absl::Status SkipString(size_t* i) {
    for (size_t j = *i + 1; j < text_.size(); ++j) {
      if (text_[j] == '"') {
        *i = j + 1;
        return absl::OkStatus();
      }
      if (text_[j] == '\x7f' ||
          absl::StartsWithIgnoreCase(text_.substr(j), "\\u007f")) {
        return ErrorAt(text_, j, file_, "control character U+007F in a string");
      }
      if (text_[j] == '\\') ++j;
    }
    *i = text_.size();
    return absl::OkStatus();  // unterminated: the parser says so
  }

  size_t ReplaceLiteral(size_t i) {
    for (const Literal& literal : kLiterals) {
      if (!absl::StartsWith(text_.substr(i), literal.text)) continue;
      out_.replace(i, literal.text.size(), literal.replacement.data(),
                   literal.replacement.size());
      return literal.text.size();
    }
    return 1;
  }

  const absl::string_view text_;
  const std::string& file_;
  const int depth_max_;
  int depth_ = 0;
  std::string out_;
};

// A first pass that builds nothing: finds the first fault, and two equal keys
// of one object. nlohmann's own tree keeps the last of two; a checkpoint with
// two says two things at once. (Its tree builder could ask a callback instead,
// but then looks through all siblings at the end of each object: a header of
// forty thousand tensors would take minutes.)
class StrictPass final : public nlohmann::json_sax<json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }
  bool start_object(size_t) override {
    keys_.emplace_back();
    return true;
  }
  bool end_object() override {
    keys_.pop_back();
    return true;
  }
  bool key(string_t& name) override {
    if (keys_.back().insert(name).second) return true;
    is_duplicate_ = true;
    duplicate_ = name;
    return false;
  }
  bool parse_error(size_t position, const std::string&,
                   const json::exception& error) override {
    position_ = position > 0 ? position - 1 : 0;
    fault_ = error.what();
    // "[json.exception.parse_error.101] parse error at line 1, column 2: X":
    // the position is said by ErrorAt.
    const size_t colon = fault_.find(": ");
    if (colon != std::string::npos) fault_ = fault_.substr(colon + 2);
    return false;
  }

  absl::Status Judge(absl::string_view text, const std::string& file) const {
    if (is_duplicate_) {
      return absl::InvalidArgumentError(
          absl::StrCat(file, ": the name \"", duplicate_, "\" is given twice"));
    }
    return ErrorAt(text, position_, file, absl::StrCat("not JSON: ", fault_));
  }

 private:
  std::vector<std::set<std::string>> keys_;
  bool is_duplicate_ = false;
  std::string duplicate_;
  size_t position_ = 0;
  std::string fault_;
};

}  // namespace

absl::StatusOr<json> ParseJson(absl::string_view text, const std::string& file,
                               const JsonLimits& limits) {
  if (text.size() > limits.bytes_max) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": ", text.size(), " bytes of JSON, at most ",
                     limits.bytes_max, " are read"));
  }
  auto scanned = Scan(text, file, limits.depth_max).Run();
  if (!scanned.ok()) return scanned.status();
  StrictPass pass;
  if (!json::sax_parse(scanned->begin(), scanned->end(), &pass))
    return pass.Judge(text, file);
  return json::parse(scanned->begin(), scanned->end(), nullptr,
                     /*allow_exceptions=*/false);
}

bool ReadJsonNumber(const json& value, double* number) {
  if (value.is_number()) {
    *number = value.get<double>();
    return true;
  }
  std::string text;
  if (value.is_string()) {
    text = value.get<std::string>();
    for (const Literal& literal : kLiterals) {
      if (text == literal.value) text = std::string(literal.text);
    }
    if (text == value.get<std::string>()) return false;  // an ordinary string
  } else if (value.is_object() && value.size() == 1 &&
             value.contains("__float__") && value["__float__"].is_string()) {
    text = value["__float__"].get<std::string>();
  } else {
    return false;
  }
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (text == "Infinity") {
    *number = kInfinity;
  } else if (text == "-Infinity") {
    *number = -kInfinity;
  } else if (text == "NaN") {
    *number = std::numeric_limits<double>::quiet_NaN();
  } else {
    return false;
  }
  return true;
}

std::string JsonForError(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  for (const Literal& literal : kLiterals) {
    const std::string quoted = absl::StrCat("\"", literal.value, "\"");
    for (size_t at = text.find(quoted); at != std::string::npos;
         at = text.find(quoted)) {
      text.replace(at, quoted.size(), literal.text.data(), literal.text.size());
    }
  }
  constexpr size_t kShown = 80;
  if (text.size() > kShown) text = text.substr(0, kShown) + "...";
  return text;
}

JsonFields::JsonFields(const json& object, std::string path, std::string file)
    : object_(object), path_(std::move(path)), file_(std::move(file)) {
  if (!object_.is_object()) {
    Fail(absl::InvalidArgumentError(
        absl::StrCat(file_, ": ", path_.empty() ? "the file" : path_, " is ",
                     JsonForError(object_), ", an object is expected")));
  }
}

void JsonFields::Fail(const absl::Status& status) {
  if (status_.ok()) status_ = status;
}

void JsonFields::FailField(const std::string& name, const std::string& text) {
  Fail(absl::InvalidArgumentError(
      absl::StrCat(file_, ": ", NameOf(name), " ", text)));
}

std::string JsonFields::NameOf(const std::string& name) const {
  const auto spelled = spelling_.find(name);
  return absl::StrCat(path_, path_.empty() ? "" : ".",
                      spelled == spelling_.end() ? name : spelled->second);
}

void JsonFields::Alias(const std::string& modern, const std::string& alias,
                       bool alias_wins) {
  const json* other = Find(alias);
  if (other == nullptr) return;
  const json* own = Find(modern);
  if (own != nullptr && !alias_wins) {
    if (*own == *other) return;
    FailField(modern, absl::StrCat("is ", JsonForError(*own), " but ", alias,
                                   ", another spelling of it, is ",
                                   JsonForError(*other)));
    return;
  }
  spelling_[modern] = alias;
}

const json* JsonFields::Find(const std::string& name) const {
  if (!object_.is_object()) return nullptr;
  const auto spelled = spelling_.find(name);
  const auto it =
      object_.find(spelled == spelling_.end() ? name : spelled->second);
  if (it == object_.end() || it->is_null()) return nullptr;
  return &*it;
}

int64_t JsonFields::Int(const std::string& name, int64_t fallback, int64_t min,
                        int64_t max) {
  const json* value = Find(name);
  if (value == nullptr) return fallback;
  const bool fits =
      value->is_number_unsigned()
          ? value->get<uint64_t>() <=
                static_cast<uint64_t>(std::numeric_limits<int64_t>::max())
          : value->is_number_integer();
  if (fits) {
    const int64_t number = value->get<int64_t>();
    if (number >= min && number <= max) return number;
  }
  FailField(name, absl::StrCat("is ", JsonForError(*value), ", an integer in ",
                               min, "..", max, " is expected"));
  return fallback;
}

double JsonFields::Number(const std::string& name, double fallback) {
  const json* value = Find(name);
  if (value == nullptr) return fallback;
  double number = 0;
  if (ReadJsonNumber(*value, &number)) return number;
  FailField(name, absl::StrCat("is ", JsonForError(*value),
                               ", a number is expected"));
  return fallback;
}

bool JsonFields::Bool(const std::string& name, bool fallback) {
  const json* value = Find(name);
  if (value == nullptr) return fallback;
  if (value->is_boolean()) return value->get<bool>();
  FailField(name, absl::StrCat("is ", JsonForError(*value),
                               ", true or false is expected"));
  return fallback;
}

std::string JsonFields::String(const std::string& name,
                               const std::string& fallback) {
  const json* value = Find(name);
  if (value == nullptr) return fallback;
  if (value->is_string()) return value->get<std::string>();
  FailField(name, absl::StrCat("is ", JsonForError(*value),
                               ", a string is expected"));
  return fallback;
}

}  // namespace trunkline::model
