#include "kernels/row_ops.h"

#include <cmath>
#include <cstring>

#include "common/bfloat16.h"
#include "common/check.h"
#include "common/float16.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/row_ops.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace trunkline::kernels {
namespace HWY_NAMESPACE {

void RmsNormRow(const RmsNormArgs& args, int64_t row) {
  const float* x = args.x + row * args.x_stride;
  float* y = args.y + row * args.y_stride;
  const float sum = SumInContractOrder(
      args.width, [x](auto d, int64_t i) TRUNKLINE_INLINE_LAMBDA {
        const auto v = hn::LoadU(d, x + i);
        return hn::Mul(v, v);
      });
  const float mean = sum / static_cast<float>(args.width);
  const float r = 1.0f / std::sqrt(mean + args.eps);
  ForLanes(args.width, [&](auto d, int64_t i) TRUNKLINE_INLINE_LAMBDA {
    const auto scaled = hn::Mul(hn::LoadU(d, x + i), hn::Set(d, r));
    const auto v = hn::Mul(hn::LoadU(d, args.weight + i), scaled);
    hn::StoreU(RoundTo(d, args.out, v), d, y + i);
  });
}

// One group of channels of one row; t is written to y first, then scaled there.
void GatedRmsNormGroup(const GatedRmsNormArgs& args, int64_t row,
                       int64_t begin) {
  const float* x = args.x + row * args.x_stride + begin;
  const float* z = args.z + row * args.z_stride + begin;
  const float* weight = args.weight + begin;
  float* y = args.y + row * args.y_stride + begin;
  ForLanes(args.group_size, [&](auto d, int64_t i) TRUNKLINE_INLINE_LAMBDA {
    const auto gate = VecSilu(d, hn::LoadU(d, z + i));
    hn::StoreU(hn::Mul(hn::LoadU(d, x + i), gate), d, y + i);
  });
  const float sum = SumInContractOrder(
      args.group_size, [y](auto d, int64_t i) TRUNKLINE_INLINE_LAMBDA {
        const auto t = hn::LoadU(d, y + i);
        return hn::Mul(t, t);
      });
  const float mean = sum / static_cast<float>(args.group_size);
  const float r = 1.0f / std::sqrt(mean + args.eps);
  ForLanes(args.group_size, [&](auto d, int64_t i) TRUNKLINE_INLINE_LAMBDA {
    const auto scaled = hn::Mul(hn::LoadU(d, y + i), hn::Set(d, r));
    const auto v = hn::Mul(scaled, hn::LoadU(d, weight + i));
    hn::StoreU(RoundTo(d, args.out, v), d, y + i);
  });
}

void AddRow(float* x, const float* y, int64_t width, Activation out) {
  ForLanes(width, [&](auto d, int64_t i) TRUNKLINE_INLINE_LAMBDA {
    const auto sum = hn::Add(hn::LoadU(d, x + i), hn::LoadU(d, y + i));
    hn::StoreU(RoundTo(d, out, sum), d, x + i);
  });
}

void Relu2Row(float* x, int64_t width, Activation out) {
  ForLanes(width, [&](auto d, int64_t i) TRUNKLINE_INLINE_LAMBDA {
    hn::StoreU(ReluSquare(d, out, hn::LoadU(d, x + i)), d, x + i);
  });
}

void SigmoidRow(float* x, int64_t width) {
  ForLanes(width, [&](auto d, int64_t i) TRUNKLINE_INLINE_LAMBDA {
    hn::StoreU(VecSigmoid(d, hn::LoadU(d, x + i)), d, x + i);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace trunkline::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trunkline::kernels {
namespace {

// A row operation shorter than this is not worth waking threads for.
constexpr int64_t kElementsPerTask = 16384;

// fn(row) for all rows, several rows a task.
template <typename Fn>
void ForRows(const KernelContext& context, int64_t rows, int64_t width,
             const Fn& fn) {
  TL_CHECK(context.pool != nullptr);
  TL_CHECK_GE(rows, 0);
  if (rows == 0 || width == 0) return;
  const int64_t rows_per_task =
      std::max<int64_t>(kElementsPerTask / std::max<int64_t>(width, 1), 1);
  const int64_t tasks = (rows + rows_per_task - 1) / rows_per_task;
  context.pool->ParallelFor(tasks, [&](int64_t task, int) {
    const int64_t end = std::min((task + 1) * rows_per_task, rows);
    for (int64_t row = task * rows_per_task; row < end; ++row) fn(row);
  });
}

float WidenElement(DType dtype, const std::byte* from) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, from, sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, from, sizeof(bits));
  return dtype == DType::kBF16 ? Bf16ToFloat(bits) : HalfToFloat(bits);
}

}  // namespace

HWY_EXPORT(RmsNormRow);
HWY_EXPORT(GatedRmsNormGroup);
HWY_EXPORT(AddRow);
HWY_EXPORT(Relu2Row);
HWY_EXPORT(SigmoidRow);

void RmsNorm(const KernelContext& context, const RmsNormArgs& args) {
  TL_CHECK_GE(args.width, 0);
  TL_CHECK(args.rows == 0 ||
           (args.x != nullptr && args.y != nullptr && args.weight != nullptr));
  ForRows(context, args.rows, args.width, [&](int64_t row) {
    HWY_DYNAMIC_DISPATCH(RmsNormRow)(args, row);
  });
}

void GatedRmsNorm(const KernelContext& context, const GatedRmsNormArgs& args) {
  TL_CHECK_GT(args.group_size, 0);
  TL_CHECK_EQ(args.width % args.group_size, 0);
  TL_CHECK(args.rows == 0 || (args.x != nullptr && args.z != nullptr &&
                              args.y != nullptr && args.weight != nullptr));
  const int64_t groups = args.width / args.group_size;
  ForRows(context, args.rows * groups, args.group_size, [&](int64_t index) {
    HWY_DYNAMIC_DISPATCH(GatedRmsNormGroup)
    (args, index / groups, index % groups * args.group_size);
  });
}

void AddRows(const KernelContext& context, float* x, int64_t x_stride,
             const float* y, int64_t y_stride, int64_t rows, int64_t width,
             Activation out) {
  ForRows(context, rows, width, [&](int64_t row) {
    HWY_DYNAMIC_DISPATCH(AddRow)
    (x + row * x_stride, y + row * y_stride, width, out);
  });
}

void EmbedRows(const KernelContext& context, const TensorView& table,
               const int32_t* ids, int64_t rows, float* out,
               int64_t out_stride) {
  TL_CHECK_EQ(table.shape.size(), 2u);
  const int64_t width = table.shape[1];
  const int64_t element_bytes = DTypeBytes(table.dtype);
  ForRows(context, rows, width, [&](int64_t row) {
    TL_CHECK(ids[row] >= 0 && ids[row] < table.shape[0])
        << "token id " << ids[row] << " outside " << table.name;
    const std::byte* from = table.data + ids[row] * width * element_bytes;
    float* to = out + row * out_stride;
    for (int64_t i = 0; i < width; ++i) {
      to[i] = WidenElement(table.dtype, from + i * element_bytes);
    }
  });
}

void Relu2(const KernelContext& context, float* x, int64_t x_stride,
           int64_t rows, int64_t width, Activation out) {
  ForRows(context, rows, width, [&](int64_t row) {
    HWY_DYNAMIC_DISPATCH(Relu2Row)(x + row * x_stride, width, out);
  });
}

void Sigmoid(const KernelContext& context, float* x, int64_t x_stride,
             int64_t rows, int64_t width) {
  ForRows(context, rows, width, [&](int64_t row) {
    HWY_DYNAMIC_DISPATCH(SigmoidRow)(x + row * x_stride, width);
  });
}

}  // namespace trunkline::kernels
#endif  // HWY_ONCE
