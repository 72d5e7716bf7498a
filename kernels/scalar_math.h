#pragma once

// The definition of exp, log, softplus, silu and sigmoid (README.md, contract
// 3). Never libm: its bits differ between versions. Each function is a fixed
// sequence of fp32 operations and fused multiply-adds; the SIMD versions do the
// same per lane. Accuracy over the normal range (tests/kernels checks this
// against long double): within 2 units in the last place of the true value;
// sigmoid and silu, whose formula adds two more roundings, within 2.5. Every
// NaN result has the bits 0x7fc00000.

namespace trunkline::kernels {

float Exp(float x);       // 0 below -104, +inf above 88.72; NaN stays NaN
float Log(float x);       // x > 0 normal or subnormal; -inf at 0; NaN below
float Log1p(float x);     // x >= 0; NaN below
float Softplus(float x);  // x > 20 ? x : log1p(exp(x))
float SigmoidScalar(float x);  // 1 / (1 + exp(-x))
// x / (1 + exp(-x)); -0 below -88.72, where exp(-x) is infinite.
float Silu(float x);

}  // namespace trunkline::kernels
