#include <cstring>

#include "kernels/combine_rows.h"
#include "kernels/rounding.h"

namespace trunkline::kernels::reference {

void CombineRows(const CombineArgs& args) {
  for (size_t row = 0; row + 1 < args.offsets.size(); ++row) {
    for (int64_t i = 0; i < args.width; ++i) {
      float acc = 0.0f;
      for (uint32_t n = args.offsets[row]; n < args.offsets[row + 1]; ++n) {
        const Contribution& from = args.contributions[n];
        float value;
        if (from.dtype == DType::kBF16) {
          uint16_t bits;
          std::memcpy(&bits, from.values + i * 2, sizeof(bits));
          value = Bf16ToFloat(bits);
        } else {
          std::memcpy(&value, from.values + i * 4, sizeof(value));
        }
        const float c = from.gated ? value : from.gate * value;
        acc = acc + c;
      }
      args.y[static_cast<int64_t>(row) * args.y_stride + i] =
          RoundTo(args.out, acc);
    }
  }
}

}  // namespace trunkline::kernels::reference
