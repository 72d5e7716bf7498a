#include "kernels/numerics.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/thread_pool.h"
#include "kernels/bf16_dot.h"
#include "kernels/machine_limits.h"

namespace trunkline::kernels {
namespace {

constexpr Numerics kClasses[] = {Numerics::kPortable, Numerics::kBf16Dot};

// How much faster the dot instruction has to be: far from both kinds of CPUs
// (0.5 and 1.9 were seen), so that noise decides nothing.
constexpr double kWorthIt = 1.25;

absl::Status CheckWeightsFit(Numerics numerics, DType weights) {
  if (numerics != Numerics::kBf16Dot || weights == DType::kBF16)
    return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("numerics class bf16dot multiplies BF16 weights only, the "
                   "checkpoint's projections are ",
                   DTypeName(weights), "; use portable"));
}

}  // namespace

std::string NumericsName(Numerics numerics) {
  return numerics == Numerics::kBf16Dot ? "bf16dot" : "portable";
}

std::vector<Numerics> SupportedNumerics() {
  std::vector<Numerics> classes;
  for (const Numerics numerics : kClasses) {
    if (CheckMachineHas(numerics).ok()) classes.push_back(numerics);
  }
  return classes;
}

absl::Status CheckNumericsText(absl::string_view asked) {
  if (asked == "auto") return absl::OkStatus();
  for (const Numerics numerics : kClasses) {
    if (asked == NumericsName(numerics)) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "numerics class \"", asked, "\" is not one of auto, portable, bf16dot"));
}

absl::Status CheckMachineHas(Numerics numerics) {
  if (numerics != Numerics::kBf16Dot || MachineHasBf16Dot())
    return absl::OkStatus();
  return absl::FailedPreconditionError(
      "numerics class bf16dot needs a CPU with AVX512_BF16, which this machine "
      "lacks; use portable");
}

Numerics FastestNumerics() {
  static const Numerics fastest = [] {
    if (!MachineHasBf16Dot()) return Numerics::kPortable;
    constexpr int kRepeats = 3;
    ThreadPool one{ThreadPool::Options{}};
    return Bf16DotPeak(one, kRepeats) > kWorthIt * FmaPeak(one, kRepeats)
               ? Numerics::kBf16Dot
               : Numerics::kPortable;
  }();
  return fastest;
}

absl::StatusOr<Numerics> ChooseNumerics(absl::string_view asked,
                                        DType weights) {
  TL_RETURN_IF_ERROR(CheckNumericsText(asked));
  if (asked == "auto") {
    return weights == DType::kBF16 ? FastestNumerics() : Numerics::kPortable;
  }
  const Numerics numerics = asked == NumericsName(Numerics::kBf16Dot)
                                ? Numerics::kBf16Dot
                                : Numerics::kPortable;
  TL_RETURN_IF_ERROR(CheckMachineHas(numerics));
  TL_RETURN_IF_ERROR(CheckWeightsFit(numerics, weights));
  return numerics;
}

}  // namespace trunkline::kernels
