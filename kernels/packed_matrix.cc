#include "kernels/packed_matrix.h"

#include <algorithm>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/bfloat16.h"
#include "common/check.h"
#include "common/float16.h"
#include "common/status_macros.h"
#include "kernels/pack_panel.h"

namespace trunkline::kernels {
namespace {

constexpr int64_t kPanel = PackedMatrix::kPanel;

// One output's values stand kPanel apart. `out` may be unaligned.
template <typename Word>
void UnpackRow(const Word* values, int64_t k, std::byte* out) {
  for (int64_t i = 0; i < k; ++i) {
    std::memcpy(out + i * static_cast<int64_t>(sizeof(Word)),
                values + i * kPanel, sizeof(Word));
  }
}

absl::Status CheckClassTakes(const TensorView& weight, Numerics numerics) {
  TL_RETURN_IF_ERROR(CheckMachineHas(numerics));
  if (numerics != Numerics::kBf16Dot || weight.dtype == DType::kBF16)
    return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("tensor ", weight.name, " is ", DTypeName(weight.dtype),
                   "; numerics class ", NumericsName(numerics),
                   " multiplies BF16 weights only"));
}

}  // namespace

absl::StatusOr<PackedMatrix> PackedMatrix::Pack(const TensorView& weight,
                                                ThreadPool& pool,
                                                Numerics numerics) {
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
  TL_RETURN_IF_ERROR(CheckClassTakes(weight, numerics));
  PackedMatrix packed;
  packed.numerics_ = numerics;
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
    if (numerics == Numerics::kBf16Dot) {
      PackPairPanel(rows, row_count, packed.k_, panel);
    } else {
      PackPanel(rows, row_count, packed.k_, weight.dtype, panel);
    }
  });
  return packed;
}

void PackedMatrix::Unpack(int64_t first, int64_t count, std::byte* out) const {
  TL_CHECK(first >= 0 && count >= 0 && first + count <= n_);
  for (int64_t row = 0; row < count; ++row) {
    const int64_t output = first + row;
    const std::byte* base = panel(output / kPanel);
    std::byte* to = out + row * k_ * DTypeBytes(dtype_);
    const int64_t place = PlaceInPanel(output, 0);
    if (numerics_ == Numerics::kBf16Dot) {
      UnpackRow(reinterpret_cast<const uint32_t*>(base) + place / 2, k_ / 2,
                to);
      if (k_ % 2 != 0) {
        std::memcpy(to + (k_ - 1) * 2, base + PlaceInPanel(output, k_ - 1) * 2,
                    2);
      }
    } else if (dtype_ == DType::kF32) {
      UnpackRow(reinterpret_cast<const uint32_t*>(base) + place, k_, to);
    } else {
      UnpackRow(reinterpret_cast<const uint16_t*>(base) + place, k_, to);
    }
  }
}

int64_t PackedMatrix::PlaceInPanel(int64_t output, int64_t input) const {
  const int64_t o = output % kPanel;
  if (numerics_ == Numerics::kBf16Dot)
    return (input / 2 * kPanel + o) * 2 + input % 2;
  return input * kPanel + PlaceInGroup(dtype_, o);
}

float PackedMatrix::At(int64_t output, int64_t input) const {
  TL_CHECK(output >= 0 && output < n_ && input >= 0 && input < k_);
  const int64_t place = PlaceInPanel(output, input);
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
