#pragma once

// Numerics classes: which arithmetic a matrix product does. Inside one class
// every machine gives the same bits for the same row and weights; between
// classes bits differ, so a cluster computes in one of them. README.md defines
// each. Router, norms, convolution, scan, attention, softmax and combine are
// the same in all classes.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/dtype.h"

namespace trunkline::kernels {

enum class Numerics : uint8_t {
  kPortable,  // fused multiply-add, k after k: any machine
  kBf16Dot,   // AVX512_BF16's dot product, pair after pair: BF16 weights only
};

std::string NumericsName(Numerics numerics);  // "portable", "bf16dot"
// The classes that this build and this machine have, kPortable first.
std::vector<Numerics> SupportedNumerics();
// The one of them whose products are fastest, measured once per process: where
// the dot instruction runs at half the rate of the fused multiply-add, as on
// some CPUs, it does the same work in the same time, and portable it is.
Numerics FastestNumerics();
// "auto" or the name of a class; INVALID_ARGUMENT otherwise.
absl::Status CheckNumericsText(absl::string_view asked);
// FAILED_PRECONDITION when this machine does not have the class.
absl::Status CheckMachineHas(Numerics numerics);

// The class of a process that holds weights of this type: the one that is
// asked for, or for "auto" the fastest that machine and weights allow.
// FAILED_PRECONDITION names what stands against the class asked for.
absl::StatusOr<Numerics> ChooseNumerics(absl::string_view asked, DType weights);

}  // namespace trunkline::kernels
