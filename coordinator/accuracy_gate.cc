#include "coordinator/accuracy_gate.h"

#include "absl/strings/str_cat.h"
#include "common/planted_mistake.h"

namespace trunkline::coordinator {
namespace {

// Versions of which it is remembered what became of them.
constexpr size_t kRemembered = 64;

void Remember(std::set<PlacementVersion>* versions, PlacementVersion version) {
  versions->insert(version);
  while (versions->size() > kRemembered) versions->erase(versions->begin());
}

}  // namespace

std::optional<AccuracyGate::Mismatch> AccuracyGate::OnResult(
    const std::string& trunk, const control::CanaryResult& result,
    PlacementVersion active) {
  Answer& expected = answers_[result.prompt];
  if (expected.digest.empty()) {
    const bool has_before = !result.before_digest.empty();
    expected.digest = has_before ? result.before_digest : result.digest;
    expected.version = has_before ? result.before_version : result.version;
  }
  if (result.version != active) return std::nullopt;
  if (result.digest == expected.digest || TL_PLANTED(kTrustEveryAnswer)) {
    expected.version = result.version;
    if (condemned_.count(result.version) == 0)
      Remember(&verified_, result.version);
    return std::nullopt;
  }
  if (condemned_.count(result.version) != 0) return std::nullopt;
  Remember(&condemned_, result.version);
  verified_.erase(result.version);
  last_mismatch_ = absl::StrCat(
      "trunk '", trunk, "': the canary prompt (", result.prompt,
      ") gives other bits under placement version ", result.version.value, " (",
      result.digest, ") than under version ", expected.version.value, " (",
      expected.digest, ")");
  return Mismatch{.bad = result.version,
                  .good = expected.version,
                  .detail = last_mismatch_};
}

std::string AccuracyGate::Describe(PlacementVersion active) const {
  if (answers_.empty()) return "";
  std::string text =
      !active.valid() ? "no placement version is active"
      : condemned_.count(active) != 0
          ? absl::StrCat("version ", active.value, " FAILED the canary")
      : verified(active)
          ? absl::StrCat("version ", active.value,
                         " gives the expected canary answer")
          : absl::StrCat("version ", active.value, " is not checked yet");
  if (!last_mismatch_.empty())
    absl::StrAppend(&text, "; last mismatch: ", last_mismatch_);
  return text;
}

}  // namespace trunkline::coordinator
