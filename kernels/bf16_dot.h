#pragma once

// The one operation of class bf16dot, VDPBF16PS of AVX512_BF16, and its plain
// definition. In each lane
//   acc = fma(x[1], w[1], acc), then acc = fma(x[0], w[0], acc):
// the odd element first, two roundings to nearest even. Operands that are
// subnormal count as zeros of their sign, a result that is tiny after rounding
// becomes a zero of its sign, and the rounding mode and flags of the thread
// are neither read nor written. (Intel's instruction reference; the tests hold
// the instruction to this definition bit for bit.)

#include <cstdint>

namespace trunkline::kernels {

// Whether this build has the instruction and this machine runs it.
bool MachineHasBf16Dot();

// `count` dots of 16 lanes each, acc[i] taking the pairs x[i] and w[i] (element
// 0 in the lower half), by the instruction itself. Needs MachineHasBf16Dot().
void Bf16DotLanes(const uint32_t* x, const uint32_t* w, int64_t count,
                  float* acc);

// `rounds` rounds of independent dots in registers alone; returns the
// operations, two per product. Needs MachineHasBf16Dot().
double Bf16DotRounds(int64_t rounds, float* sink);

namespace reference {

// acc after one pair of products.
float Bf16Dot(float acc, float x0, float x1, float w0, float w1);
// A value of a row as the class multiplies it: nearest even bf16, a subnormal
// fp32 value as zero.
float Bf16DotInput(float value);

}  // namespace reference
}  // namespace trunkline::kernels
