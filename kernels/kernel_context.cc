#include "kernels/kernel_context.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "hwy/targets.h"

namespace trunkline::kernels {
namespace {

struct Target {
  int64_t bit;
  const char* name;
};

// Best first. The build holds those that HWY_TARGETS names.
constexpr Target kTargets[] = {
    {HWY_AVX3, "avx512"},   {HWY_AVX2, "avx2"},     {HWY_NEON, "neon"},
    {HWY_EMU128, "scalar"}, {HWY_SCALAR, "scalar"},
};

// What this build has and this machine runs, asked before any selection.
int64_t Available() {
  static const int64_t available =
      (hwy::SupportedTargets() | HWY_STATIC_TARGET) & HWY_TARGETS;
  return available;
}

int64_t& Selected() {
  static int64_t selected = 0;
  return selected;
}

}  // namespace

std::vector<std::string> SupportedTargets() {
  std::vector<std::string> names;
  for (const Target& target : kTargets) {
    if ((Available() & target.bit) != 0) names.emplace_back(target.name);
  }
  return names;
}

std::string ActiveTarget() {
  if (Selected() == 0) return SupportedTargets().front();
  for (const Target& target : kTargets) {
    if (Selected() == target.bit) return target.name;
  }
  return "";
}

absl::Status SelectTarget(absl::string_view name) {
  const int64_t available = Available();
  if (name == "auto") {
    Selected() = 0;
    // Without a restriction Highway takes the best target at the next call.
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().DeInit();
    return absl::OkStatus();
  }
  for (const Target& target : kTargets) {
    if ((available & target.bit) == 0 || name != target.name) continue;
    Selected() = target.bit;
    // The restriction, rather than the choice alone, so that a later query of
    // Highway's does not undo it.
    hwy::SetSupportedTargetsForTest(target.bit);
    hwy::GetChosenTarget().Update(target.bit);
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "SIMD target \"", name, "\" is not available; supported here: auto, ",
      absl::StrJoin(SupportedTargets(), ", ")));
}

}  // namespace trunkline::kernels
