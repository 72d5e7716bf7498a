// The depthwise convolution of mamba.h. A segment's history (the rows before
// it) and its rows form one run of input rows; output t reads inputs t .. t+K-1
// of that run.

#include <algorithm>

#include "common/check.h"
#include "kernels/mamba.h"
#include "kernels/thread_scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/causal_conv.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace trunkline::kernels {
namespace HWY_NAMESPACE {

// The state's rows of channels [begin, begin + count) as fp32.
void LoadHistory(const CausalConvArgs& args, const StateSegment& segment,
                 int64_t begin, int64_t count, float* history) {
  for (int64_t j = 0; j + 1 < args.kernel; ++j) {
    const int64_t offset = j * args.channels + begin;
    const auto* as_float = reinterpret_cast<const float*>(segment.state);
    const auto* as_bf16 = reinterpret_cast<const uint16_t*>(segment.state);
    const bool bf16 = args.out == Activation::kBf16;
    ForLanes(count, [&](auto d, int64_t i) TRUNKLINE_INLINE_LAMBDA {
      hn::StoreU(bf16 ? LoadBf16(d, as_bf16 + offset + i)
                      : hn::LoadU(d, as_float + offset + i),
                 d, history + j * count + i);
    });
  }
}

void StoreStateRow(const CausalConvArgs& args, const StateSegment& segment,
                   int64_t j, int64_t begin, int64_t count, const float* row) {
  const int64_t offset = j * args.channels + begin;
  auto* as_float = reinterpret_cast<float*>(segment.state);
  auto* as_bf16 = reinterpret_cast<uint16_t*>(segment.state);
  const bool bf16 = args.out == Activation::kBf16;
  ForLanes(count, [&](auto d, int64_t i) TRUNKLINE_INLINE_LAMBDA {
    const auto v = hn::LoadU(d, row + i);
    if (bf16) {
      StoreBf16(d, v, as_bf16 + offset + i);
    } else {
      hn::StoreU(v, d, as_float + offset + i);
    }
  });
}

void ConvolveChannels(const CausalConvArgs& args, const StateSegment& segment,
                      int64_t begin, int64_t count) {
  static thread_local ThreadScratch scratch;
  const int64_t before = args.kernel - 1;
  float* history = scratch.Floats(before * count);
  LoadHistory(args, segment, begin, count, history);
  // Input row `run` of history and rows together.
  const auto input = [&](int64_t run) TRUNKLINE_INLINE_LAMBDA {
    return run < before
               ? history + run * count
               : args.x + (segment.row_begin + run - before) * args.x_stride +
                     begin;
  };
  for (int64_t t = 0; t < segment.row_count; ++t) {
    float* y = args.y + (segment.row_begin + t) * args.y_stride + begin;
    ForLanes(count, [&](auto d, int64_t i) TRUNKLINE_INLINE_LAMBDA {
      auto c = args.bias != nullptr ? hn::LoadU(d, args.bias + begin + i)
                                    : hn::Zero(d);
      for (int64_t j = 0; j < args.kernel; ++j) {
        c = Fma(hn::LoadU(d, args.weight + j * args.channels + begin + i),
                hn::LoadU(d, input(t + j) + i), c);
      }
      hn::StoreU(RoundTo(d, args.out, VecSilu(d, c)), d, y + i);
    });
  }
  for (int64_t j = 0; j < before; ++j) {
    StoreStateRow(args, segment, j, begin, count, input(segment.row_count + j));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace trunkline::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trunkline::kernels {

HWY_EXPORT(ConvolveChannels);

int64_t ConvStateBytes(int64_t channels, int64_t kernel, Activation type) {
  return (kernel - 1) * channels * (type == Activation::kBf16 ? 2 : 4);
}

void CausalConv(const KernelContext& context, const CausalConvArgs& args) {
  TL_CHECK(context.pool != nullptr);
  TL_CHECK_GE(args.kernel, 2);
  TL_CHECK_GE(args.channels, 0);
  if (args.segments.empty() || args.channels == 0) return;
  TL_CHECK(args.weight != nullptr && args.x != nullptr && args.y != nullptr);
  for (const StateSegment& segment : args.segments) {
    TL_CHECK(segment.state != nullptr && segment.row_count >= 0);
  }
  constexpr int64_t kChannelsPerTask = 512;
  const int64_t ranges =
      (args.channels + kChannelsPerTask - 1) / kChannelsPerTask;
  const int64_t tasks = static_cast<int64_t>(args.segments.size()) * ranges;
  context.pool->ParallelFor(tasks, [&](int64_t task, int) {
    const StateSegment& segment =
        args.segments[static_cast<size_t>(task / ranges)];
    if (segment.row_count == 0) return;
    const int64_t begin = task % ranges * kChannelsPerTask;
    HWY_DYNAMIC_DISPATCH(ConvolveChannels)
    (args, segment, begin, std::min(kChannelsPerTask, args.channels - begin));
  });
}

}  // namespace trunkline::kernels
#endif  // HWY_ONCE
