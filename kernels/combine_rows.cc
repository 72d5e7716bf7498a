#include "kernels/combine_rows.h"

#include <algorithm>

#include "common/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/combine_rows.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace trunkline::kernels {
namespace HWY_NAMESPACE {

// acc += c over `count` columns from `begin` on.
void AddContribution(const Contribution& contribution, int64_t begin,
                     int64_t count, float* acc) {
  const auto* as_float = reinterpret_cast<const float*>(contribution.values);
  const auto* as_bf16 = reinterpret_cast<const uint16_t*>(contribution.values);
  const bool bf16 = contribution.dtype == DType::kBF16;
  const float gate = contribution.gate;
  const bool gated = contribution.gated;
  ForLanes(count, [&](auto d, int64_t i) TRUNKLINE_INLINE_LAMBDA {
    auto c = bf16 ? LoadBf16(d, as_bf16 + begin + i)
                  : hn::LoadU(d, as_float + begin + i);
    if (!gated) c = hn::Mul(hn::Set(d, gate), c);
    hn::StoreU(hn::Add(hn::LoadU(d, acc + i), c), d, acc + i);
  });
}

void CombineColumns(const CombineArgs& args, int64_t row, int64_t begin,
                    int64_t end) {
  constexpr int64_t kBlock = 512;
  HWY_ALIGN float acc[kBlock];
  float* y = args.y + row * args.y_stride;
  for (int64_t at = begin; at < end; at += kBlock) {
    const int64_t count = std::min(kBlock, end - at);
    std::fill(acc, acc + count, 0.0f);
    for (uint32_t c = args.offsets[static_cast<size_t>(row)];
         c < args.offsets[static_cast<size_t>(row) + 1]; ++c) {
      AddContribution(args.contributions[c], at, count, acc);
    }
    ForLanes(count, [&](auto d, int64_t i) TRUNKLINE_INLINE_LAMBDA {
      hn::StoreU(RoundTo(d, args.out, hn::Load(d, acc + i)), d, y + at + i);
    });
  }
}

void GateRowOnTarget(const float* row, float gate, int64_t width, float* out) {
  ForLanes(width, [&](auto d, int64_t i) TRUNKLINE_INLINE_LAMBDA {
    hn::StoreU(hn::Mul(hn::Set(d, gate), hn::LoadU(d, row + i)), d, out + i);
  });
}

void NarrowRowOnTarget(const float* row, int64_t width, uint16_t* out) {
  ForLanes(width, [&](auto d, int64_t i) TRUNKLINE_INLINE_LAMBDA {
    StoreBf16(d, hn::LoadU(d, row + i), out + i);
  });
}

void WidenRowOnTarget(const uint16_t* row, int64_t width, float* out) {
  ForLanes(width, [&](auto d, int64_t i) TRUNKLINE_INLINE_LAMBDA {
    hn::StoreU(LoadBf16(d, row + i), d, out + i);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace trunkline::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trunkline::kernels {

HWY_EXPORT(CombineColumns);
HWY_EXPORT(GateRowOnTarget);
HWY_EXPORT(NarrowRowOnTarget);
HWY_EXPORT(WidenRowOnTarget);

void CombineRows(const KernelContext& context, const CombineArgs& args) {
  TL_CHECK(context.pool != nullptr);
  TL_CHECK(!args.offsets.empty()) << "offsets hold one entry more than rows";
  TL_CHECK_LE(args.offsets.back(), args.contributions.size());
  const int64_t rows = static_cast<int64_t>(args.offsets.size()) - 1;
  if (rows == 0 || args.width == 0) return;
  TL_CHECK(args.y != nullptr);
  TL_CHECK_GE(args.y_stride, args.width);
  for (const Contribution& contribution : args.contributions) {
    TL_CHECK(contribution.values != nullptr);
    TL_CHECK(contribution.dtype == DType::kF32 ||
             (contribution.dtype == DType::kBF16 && !contribution.gated))
        << "contributions are F32, or ungated BF16";
  }
  // Rows alone, unless there are too few for the threads to share.
  constexpr int64_t kColumnsPerTask = 1024;
  const int64_t ranges =
      rows >= context.pool->threads()
          ? 1
          : (args.width + kColumnsPerTask - 1) / kColumnsPerTask;
  const int64_t columns = (args.width + ranges - 1) / ranges;
  context.pool->ParallelFor(rows * ranges, [&](int64_t task, int) {
    const int64_t begin = task % ranges * columns;
    HWY_DYNAMIC_DISPATCH(CombineColumns)
    (args, task / ranges, begin, std::min(begin + columns, args.width));
  });
}

void GateRow(const float* row, float gate, int64_t width, float* out) {
  HWY_DYNAMIC_DISPATCH(GateRowOnTarget)(row, gate, width, out);
}

void NarrowRow(const float* row, int64_t width, uint16_t* out) {
  HWY_DYNAMIC_DISPATCH(NarrowRowOnTarget)(row, width, out);
}

void WidenRow(const uint16_t* row, int64_t width, float* out) {
  HWY_DYNAMIC_DISPATCH(WidenRowOnTarget)(row, width, out);
}

}  // namespace trunkline::kernels
#endif  // HWY_ONCE
