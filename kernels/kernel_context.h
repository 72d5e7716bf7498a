#pragma once

// What every kernel call needs: the threads to run on, the numerics class that
// weights are packed for, and which SIMD target is in force.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/dtype.h"
#include "common/thread_pool.h"
#include "kernels/numerics.h"

namespace trunkline::kernels {

// What rows are rounded to after each operation (nemotron-h.md section 0a.3):
// BF16 for bf16 checkpoints, F32 (no rounding) for F32 and F16 ones. Router,
// norms' insides, softmax, SSM state and the weighted sum of experts are fp32
// in either case.
enum class Activation : uint8_t { kF32, kBf16 };

struct KernelContext {
  ThreadPool* pool = nullptr;  // not owned; required
  // Of matrices that are packed from here on. A product is in the class of its
  // packed matrix, so this matters where weights are loaded and checked.
  Numerics numerics = Numerics::kPortable;
};

// Names of the targets this build has and this machine runs, best first:
// "avx512", "avx2", "neon", "scalar". All give the same bits. Products of class
// bf16dot run on their own instruction whatever the target.
std::vector<std::string> SupportedTargets();
std::string ActiveTarget();
// "auto" or one of SupportedTargets(). Process-wide; call before kernels run.
// Unknown or unsupported: INVALID_ARGUMENT that lists what is supported.
absl::Status SelectTarget(absl::string_view name);

// Digest (hex) of a fixed self-check computation in context.numerics: equal on
// all machines of one class. A worker registers with it; a coordinator in exact
// mode refuses a mismatch.
std::string SelfCheckDigest(const KernelContext& context);

}  // namespace trunkline::kernels
