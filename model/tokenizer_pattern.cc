#include "model/tokenizer_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/tokenizer_utf8.h"

namespace trunkline::model {
namespace {

// Steps as PCRE2 counts them. A match starts with a small allowance, which
// nearly every match keeps to; one that needs more is run again with more, out
// of a budget that grows with the text. So the whole work is linear in the text
// and yet a single match may run over all of it.
constexpr uint32_t kStepsPerMatch = 1024;
constexpr uint64_t kStepsBudgetFixed = 1'000'000;
constexpr uint64_t kStepsBudgetPerByte = 256;
constexpr uint32_t kAllowanceGrowth = 8;
// Backtracking state of one match. The compiled code starts on the thread's
// stack and gets this much when it asks for more; the interpreter, where there
// is no compiled code, has its heap.
constexpr size_t kMatchStackBytesMax = size_t{64} << 20;
constexpr uint32_t kMatchHeapKibibytesMax = 64 << 10;
constexpr size_t kPatternBytesMax = 64 * 1024;
constexpr uint32_t kNestingMax = 64;

std::string ErrorText(int code) {
  PCRE2_UCHAR buffer[256];
  if (pcre2_get_error_message(code, buffer, sizeof(buffer)) < 0) {
    return absl::StrCat("PCRE2 error ", code);
  }
  return reinterpret_cast<const char*>(buffer);
}

// One scan over one text: what PCRE2 wants per thread.
class Scan {
 public:
  Scan(const pcre2_code* code, absl::string_view text)
      : code_(code),
        text_(text),
        context_(pcre2_match_context_create(nullptr)),
        data_(pcre2_match_data_create_from_pattern(code, nullptr)),
        budget_(kStepsBudgetFixed + kStepsBudgetPerByte * text.size()) {
    pcre2_set_heap_limit(context_, kMatchHeapKibibytesMax);
  }
  ~Scan() {
    pcre2_match_data_free(data_);
    pcre2_match_context_free(context_);
    pcre2_jit_stack_free(stack_);
  }
  Scan(const Scan&) = delete;
  Scan& operator=(const Scan&) = delete;

  // Whether there is a match at or after `from`; then start() and end().
  absl::StatusOr<bool> Find(size_t from, uint32_t options) {
    uint32_t allowance = kStepsPerMatch;
    for (;;) {
      const int rc = MatchOnce(from, options, allowance);
      if (rc >= 0) return true;
      if (rc == PCRE2_ERROR_NOMATCH) return false;
      if (rc != PCRE2_ERROR_MATCHLIMIT || budget_ < allowance) {
        return absl::ResourceExhaustedError(absl::StrCat(
            "the pre_tokenizer pattern at byte ", from, " of a text of ",
            text_.size(), " bytes: ", ErrorText(rc)));
      }
      budget_ -= allowance;
      allowance = static_cast<uint32_t>(std::min<uint64_t>(
          uint64_t{allowance} * kAllowanceGrowth, 0xffffffffu));
    }
  }
  size_t start() const { return pcre2_get_ovector_pointer(data_)[0]; }
  size_t end() const { return pcre2_get_ovector_pointer(data_)[1]; }

 private:
  int MatchOnce(size_t from, uint32_t options, uint32_t allowance) {
    pcre2_set_match_limit(context_, allowance);
    options |= PCRE2_NO_UTF_CHECK;  // Encode has checked the whole text
    const auto match = [&] {
      return pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text_.data()),
                         text_.size(), from, options, data_, context_);
    };
    const int rc = match();
    if (rc != PCRE2_ERROR_JIT_STACKLIMIT || stack_ != nullptr) return rc;
    stack_ = pcre2_jit_stack_create(1 << 16, kMatchStackBytesMax, nullptr);
    if (stack_ == nullptr) return rc;
    pcre2_jit_stack_assign(context_, nullptr, stack_);
    return match();
  }

  const pcre2_code* const code_;
  const absl::string_view text_;
  pcre2_match_context* const context_;
  pcre2_match_data* const data_;
  pcre2_jit_stack* stack_ = nullptr;
  uint64_t budget_;
};

}  // namespace

struct TokenizerPattern::Compiled {
  pcre2_code* code = nullptr;
  ~Compiled() { pcre2_code_free(code); }
};

TokenizerPattern::TokenizerPattern(std::unique_ptr<Compiled> compiled)
    : compiled_(std::move(compiled)) {}
TokenizerPattern::~TokenizerPattern() = default;

absl::StatusOr<std::unique_ptr<TokenizerPattern>> TokenizerPattern::Compile(
    absl::string_view pattern) {
  if (pattern.size() > kPatternBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("a pattern of ", pattern.size(), " bytes; at most ",
                     kPatternBytesMax, " are read"));
  }
  TL_ASSIGN_OR_RETURN(const std::string translated,
                      TranslateOnigurumaPattern(pattern));
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(context, kNestingMax);
  int error = 0;
  size_t offset = 0;
  auto compiled = std::make_unique<Compiled>();
  compiled->code = pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error,
      &offset, context);
  pcre2_compile_context_free(context);
  if (compiled->code == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "pattern \"", pattern, "\" does not compile: ", ErrorText(error),
        " at byte ", offset, " of \"", translated, "\""));
  }
  // Where the machine allows no executable memory the interpreter does it.
  (void)pcre2_jit_compile(compiled->code, PCRE2_JIT_COMPLETE);
  return std::unique_ptr<TokenizerPattern>(
      new TokenizerPattern(std::move(compiled)));
}

absl::Status TokenizerPattern::ForEachPart(
    absl::string_view text,
    absl::FunctionRef<absl::Status(absl::string_view)> part) const {
  Scan scan(compiled_->code, text);
  size_t from = 0;       // where the next search starts
  size_t delivered = 0;  // everything before it has been given to `part`
  bool matched_before = false;
  while (from <= text.size()) {
    TL_ASSIGN_OR_RETURN(const bool found, scan.Find(from, 0));
    if (!found) break;
    const size_t start = scan.start(), end = scan.end();
    if (start == end && matched_before && start == delivered) {
      // An empty match right behind the last one would repeat for ever: the
      // search goes on one character later, as Oniguruma's iterator does.
      if (from == text.size()) break;
      from += FrontUtf8(text.substr(from)).bytes;
      continue;
    }
    if (start > delivered) {
      TL_RETURN_IF_ERROR(part(text.substr(delivered, start - delivered)));
    }
    if (end > start) {
      TL_RETURN_IF_ERROR(part(text.substr(start, end - start)));
    }
    from = delivered = end;
    matched_before = true;
  }
  if (delivered < text.size()) {
    TL_RETURN_IF_ERROR(part(text.substr(delivered)));
  }
  return absl::OkStatus();
}

bool TokenizerPattern::MatchesFront(absl::string_view text) const {
  Scan scan(compiled_->code, text);
  const absl::StatusOr<bool> found = scan.Find(0, PCRE2_ANCHORED);
  return found.ok() && *found;
}

}  // namespace trunkline::model
