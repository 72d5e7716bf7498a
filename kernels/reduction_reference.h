#pragma once

// Contract 2, as the reference kernels use it.

#include <cstdint>

namespace trunkline::kernels::reference {

// term(i) for i = 0 .. n-1, summed in contract order.
template <typename Term>
float SumInOrder(int64_t n, const Term& term) {
  float p[16] = {};
  for (int64_t i = 0; i < n; ++i) p[i % 16] += term(i);
  for (int half = 8; half >= 1; half /= 2) {
    for (int j = 0; j < half; ++j) p[j] += p[j + half];
  }
  return p[0];
}

}  // namespace trunkline::kernels::reference
