#include "kernels/packed_matrix.h"

#include <algorithm>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/bfloat16.h"
#include "common/check.h"
#include "kernels/half.h"

namespace trunkline::kernels {
namespace {

constexpr int64_t kPanel = PackedMatrix::kPanel;

// Inputs transposed at a time: 32 rows of this many bytes stay in the first
// level cache while they are written out group by group.
constexpr int64_t kBlockBytes = 256;

// Where output `o` of a panel stands in its group of kPanel.
int64_t PlaceInGroup(DType dtype, int64_t o) {
  if (dtype != DType::kBF16) return o;
  return o < kPanel / 2 ? 2 * o : 2 * (o - kPanel / 2) + 1;
}

template <typename Word>
void PackPanel(const std::byte* rows, int64_t row_count, int64_t k, DType dtype,
               Word* panel) {
  constexpr int64_t kBlock = kBlockBytes / static_cast<int64_t>(sizeof(Word));
  int64_t source[kPanel];  // the row that stands at each place; -1: none
  std::fill(source, source + kPanel, -1);
  for (int64_t o = 0; o < row_count; ++o) source[PlaceInGroup(dtype, o)] = o;
  Word block[kPanel][kBlock];
  std::memset(block, 0, sizeof(block));
  for (int64_t begin = 0; begin < k; begin += kBlock) {
    const int64_t count = std::min(kBlock, k - begin);
    for (int64_t place = 0; place < kPanel; ++place) {
      if (source[place] < 0) continue;
      // The source may be unaligned: bytes, not elements.
      std::memcpy(block[place],
                  rows + (source[place] * k + begin) *
                             static_cast<int64_t>(sizeof(Word)),
                  static_cast<size_t>(count) * sizeof(Word));
    }
    for (int64_t i = 0; i < count; ++i) {
      Word* group = panel + (begin + i) * kPanel;
      for (int64_t place = 0; place < kPanel; ++place) {
        group[place] = block[place][i];
      }
    }
  }
}

}  // namespace

absl::StatusOr<PackedMatrix> PackedMatrix::Pack(const TensorView& weight,
                                                ThreadPool& pool) {
  if (weight.shape.size() != 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor ", weight.name, " has shape ", ShapeString(weight.shape),
        "; a weight matrix needs two dimensions"));
  }
  if (weight.shape[0] < 0 || weight.shape[1] < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", weight.name,
                     " has a negative dimension: ", ShapeString(weight.shape)));
  }
  PackedMatrix packed;
  packed.n_ = weight.shape[0];
  packed.k_ = weight.shape[1];
  packed.dtype_ = weight.dtype;
  packed.data_ = AlignedBuffer(
      static_cast<size_t>(packed.panels() * packed.panel_bytes()));
  const int64_t row_bytes = packed.k_ * DTypeBytes(weight.dtype);
  pool.ParallelFor(packed.panels(), [&](int64_t p, int) {
    const std::byte* rows = weight.data + p * kPanel * row_bytes;
    const int64_t row_count = std::min(kPanel, packed.n_ - p * kPanel);
    std::byte* panel = packed.data_.data() + p * packed.panel_bytes();
    if (weight.dtype == DType::kF32) {
      PackPanel(rows, row_count, packed.k_, weight.dtype,
                reinterpret_cast<uint32_t*>(panel));
    } else {
      PackPanel(rows, row_count, packed.k_, weight.dtype,
                reinterpret_cast<uint16_t*>(panel));
    }
  });
  return packed;
}

float PackedMatrix::At(int64_t output, int64_t input) const {
  TL_CHECK(output >= 0 && output < n_ && input >= 0 && input < k_);
  const int64_t place = input * kPanel + PlaceInGroup(dtype_, output % kPanel);
  const std::byte* base = panel(output / kPanel);
  switch (dtype_) {
    case DType::kF32:
      return reinterpret_cast<const float*>(base)[place];
    case DType::kF16:
      return HalfToFloat(reinterpret_cast<const uint16_t*>(base)[place]);
    case DType::kBF16:
      return Bf16ToFloat(reinterpret_cast<const uint16_t*>(base)[place]);
  }
  return 0.0f;
}

}  // namespace trunkline::kernels
