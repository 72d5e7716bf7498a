// The part of Oniguruma's Ruby syntax that PCRE2 (UTF, UCP, MULTILINE, newline
// LF) reads the same way. Everything else has to be refused: a pattern that is
// read differently would give other token ids and nobody would notice.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/status_macros.h"
#include "model/tokenizer_pattern.h"

namespace trunkline::model {
namespace {

class Translator {
 public:
  explicit Translator(absl::string_view pattern) : in_(pattern) {}

  absl::StatusOr<std::string> Run() {
    while (at_ < in_.size()) {
      switch (in_[at_]) {
        case '\\':
          TL_RETURN_IF_ERROR(Escape());
          break;
        case '[':
          TL_RETURN_IF_ERROR(CharacterClass());
          break;
        case '(':
          TL_RETURN_IF_ERROR(GroupStart());
          break;
        case '{':
          TL_RETURN_IF_ERROR(Interval());
          break;
        default:
          Copy(1);
      }
    }
    return std::move(out_);
  }

 private:
  absl::Status Unsupported(absl::string_view construct,
                           absl::string_view why) const {
    return absl::UnimplementedError(absl::StrCat("pattern \"", in_, "\": \"",
                                                 construct, "\" at byte ", at_,
                                                 " is not supported: ", why));
  }

  void Copy(size_t bytes) {
    out_.append(in_.data() + at_, bytes);
    at_ += bytes;
  }

  // \x of the pattern, inside a class or outside.
  absl::Status Escape() {
    if (at_ + 1 == in_.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("pattern \"", in_, "\" ends in a lone backslash"));
    }
    const char c = in_[at_ + 1];
    const absl::string_view construct = in_.substr(at_, 2);
    switch (c) {
      case 's':  // PCRE2's \s also takes U+180E, which is not White_Space
        out_ += "\\p{White_Space}";
        at_ += 2;
        return absl::OkStatus();
      case 'S':
        out_ += "\\P{White_Space}";
        at_ += 2;
        return absl::OkStatus();
      case 'v':  // one character there, a class in PCRE2
        out_ += "\\x0b";
        at_ += 2;
        return absl::OkStatus();
      case 'd':
      case 'D':
      case 'r':
      case 'n':
      case 't':
      case 'f':
      case 'a':
      case 'e':
        Copy(2);
        return absl::OkStatus();
      case 'p':
      case 'P':
        return Property();
      case 'x':
        return HexEscape();
      default:
        break;
    }
    if (absl::ascii_isalnum(static_cast<unsigned char>(c))) {
      return Unsupported(construct,
                         "regular expression engines read it differently");
    }
    if (static_cast<unsigned char>(c) >= 0x80) {
      ++at_;  // an escaped character outside ASCII is itself
      return absl::OkStatus();
    }
    Copy(2);
    return absl::OkStatus();
  }

  absl::Status Property() {
    const size_t close = in_.find('}', at_);
    if (at_ + 2 >= in_.size() || in_[at_ + 2] != '{' ||
        close == absl::string_view::npos) {
      return Unsupported(in_.substr(at_, 3), "write \\p{Name}");
    }
    Copy(close + 1 - at_);  // PCRE2 refuses a name that it does not know
    return absl::OkStatus();
  }

  absl::Status HexEscape() {
    size_t end = at_ + 2;
    if (end < in_.size() && in_[end] == '{') {
      end = in_.find('}', end);
      if (end == absl::string_view::npos) {
        return Unsupported(in_.substr(at_, 3), "the brace is not closed");
      }
      Copy(end + 1 - at_);
      return absl::OkStatus();
    }
    while (end < in_.size() && end < at_ + 4 &&
           absl::ascii_isxdigit(static_cast<unsigned char>(in_[end]))) {
      ++end;
    }
    if (end != at_ + 4 || in_[at_ + 2] > '7') {
      // Above 7f it is a byte to Oniguruma and a character to PCRE2.
      return Unsupported(in_.substr(at_, end - at_), "write \\x{...}");
    }
    Copy(4);
    return absl::OkStatus();
  }

  absl::Status CharacterClass() {
    const size_t open = at_;
    Copy(1);
    if (at_ < in_.size() && in_[at_] == '^') Copy(1);
    bool first = true;
    while (at_ < in_.size()) {
      const char c = in_[at_];
      if (c == ']' && !first) {
        Copy(1);
        return absl::OkStatus();
      }
      if (c == ']') return Unsupported("]", "escape it in front of a class");
      first = false;
      if (c == '[') {
        return Unsupported("[", "a class inside a class, or not escaped");
      }
      if (absl::StartsWith(in_.substr(at_), "&&")) {
        return Unsupported("&&", "the intersection of classes");
      }
      if (c == '\\') {
        TL_RETURN_IF_ERROR(Escape());
      } else {
        Copy(1);
      }
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "pattern \"", in_, "\": the class at byte ", open, " is not closed"));
  }

  absl::Status GroupStart() {
    const absl::string_view rest = in_.substr(at_);
    for (const absl::string_view known :
         {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
      if (absl::StartsWith(rest, known)) {
        Copy(known.size());
        return absl::OkStatus();
      }
    }
    if (absl::StartsWith(rest, "(?") || absl::StartsWith(rest, "(*")) {
      return Unsupported(rest.substr(0, 4), "a group of this kind");
    }
    Copy(1);
    return absl::OkStatus();
  }

  // {n}, {n,} and {n,m}: the forms in which the engines agree.
  absl::Status Interval() {
    size_t end = at_ + 1;
    const auto digits = [&] {
      const size_t before = end;
      while (end < in_.size() &&
             absl::ascii_isdigit(static_cast<unsigned char>(in_[end]))) {
        ++end;
      }
      return end > before;
    };
    bool well_formed = digits();
    if (well_formed && end < in_.size() && in_[end] == ',') {
      ++end;
      digits();
    }
    well_formed = well_formed && end < in_.size() && in_[end] == '}';
    if (!well_formed) {
      return Unsupported(in_.substr(at_, 4), "neither {n}, {n,} nor {n,m}");
    }
    Copy(end + 1 - at_);
    if (at_ < in_.size() && in_[at_] == '+') {
      return Unsupported("}+", "possessive in one engine, repeated in another");
    }
    return absl::OkStatus();
  }

  const absl::string_view in_;
  size_t at_ = 0;
  std::string out_;
};

}  // namespace

absl::StatusOr<std::string> TranslateOnigurumaPattern(
    absl::string_view pattern) {
  return Translator(pattern).Run();
}

}  // namespace trunkline::model
