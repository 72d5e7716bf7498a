// The scan of mamba.h. Lanes are the head's channels, so that each state
// element and each output sees its operations one after the other whatever the
// vector width.

#include <algorithm>

#include "common/check.h"
#include "kernels/array_math.h"
#include "kernels/mamba.h"
#include "kernels/thread_scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/selective_scan.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace trunkline::kernels {
namespace HWY_NAMESPACE {

// Tokens whose step sizes are computed together.
constexpr int64_t kTokens = 64;

// One token of one head.
struct HeadToken {
  const float* x;    // [head_dim]
  const float* bdt;  // [state_size], B * dt
  const float* c;    // [state_size]
  float decay;       // exp(dt * A)
  float skip;        // D
  float* y;          // [head_dim]
};

// kVectors vectors of channels from `p` on: the state is read, advanced and
// written once; y stays in registers.
template <size_t kVectors, class D>
HWY_INLINE void AdvanceChannels(D d, const SelectiveScanArgs& args,
                                const HeadToken& token, float* state,
                                int64_t p) {
  using V = hn::Vec<D>;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  V x[kVectors];
  V y[kVectors];
  Unroll<kVectors>([&](auto v) TRUNKLINE_INLINE_LAMBDA {
    x[v] = hn::LoadU(d, token.x + p + static_cast<int64_t>(v) * lanes);
    y[v] = hn::Zero(d);
  });
  const V decay = hn::Set(d, token.decay);
  float* at = state + p;
  for (int64_t n = 0; n < args.state_size; ++n, at += args.head_dim) {
    const V bdt = hn::Set(d, token.bdt[n]);
    const V c = hn::Set(d, token.c[n]);
    Unroll<kVectors>([&](auto v) TRUNKLINE_INLINE_LAMBDA {
      float* place = at + static_cast<int64_t>(v) * lanes;
      const V s = Fma(hn::LoadU(d, place), decay, hn::Mul(bdt, x[v]));
      hn::StoreU(s, d, place);
      y[v] = Fma(s, c, y[v]);
    });
  }
  const V skip = hn::Set(d, token.skip);
  Unroll<kVectors>([&](auto v) TRUNKLINE_INLINE_LAMBDA {
    const V out = Fma(x[v], skip, y[v]);
    hn::StoreU(RoundTo(d, args.out, out), d,
               token.y + p + static_cast<int64_t>(v) * lanes);
  });
}

HWY_INLINE void AdvanceHead(const SelectiveScanArgs& args,
                            const HeadToken& token, float* state) {
  const FullTag d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t p = 0;
  for (; p + 4 * lanes <= args.head_dim; p += 4 * lanes) {
    AdvanceChannels<4>(d, args, token, state, p);
  }
  for (; p + lanes <= args.head_dim; p += lanes) {
    AdvanceChannels<1>(d, args, token, state, p);
  }
  for (; p < args.head_dim; ++p) {
    AdvanceChannels<1>(OneTag(), args, token, state, p);
  }
}

// dt and exp(dt * A) of tokens [row, row + tokens) and heads [head, head +
// heads), both [heads, tokens].
void StepSizes(const SelectiveScanArgs& args, int64_t row, int64_t tokens,
               int64_t head, int64_t heads, float* dt, float* decay) {
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t t = 0; t < tokens; ++t) {
      dt[h * tokens + t] = args.dt[(row + t) * args.dt_stride + head + h] +
                           args.dt_bias[head + h];
      // The factor A, until dt is known.
      decay[h * tokens + t] = args.a[head + h];
    }
  }
  ForLanes(heads * tokens, [&](auto d, int64_t i) TRUNKLINE_INLINE_LAMBDA {
    auto v = VecSoftplus(d, hn::LoadU(d, dt + i));
    const auto low = hn::Set(d, args.dt_min);
    const auto high = hn::Set(d, args.dt_max);
    v = hn::IfThenElse(hn::Lt(v, low), low, v);
    v = hn::IfThenElse(hn::Gt(v, high), high, v);
    hn::StoreU(v, d, dt + i);
    const auto a = hn::LoadU(d, decay + i);
    hn::StoreU(VecExp(d, hn::Mul(v, a)), d, decay + i);
  });
}

void ScanHeads(const SelectiveScanArgs& args, const StateSegment& segment,
               int64_t head_begin, int64_t heads) {
  static thread_local ThreadScratch scratch;
  float* dt = scratch.Floats(2 * heads * kTokens + args.state_size);
  float* decay = dt + heads * kTokens;
  float* bdt = decay + heads * kTokens;
  const int64_t inner = args.heads * args.head_dim;
  const int64_t heads_per_group = args.heads / args.groups;
  auto* state = reinterpret_cast<float*>(segment.state);
  for (int64_t at = 0; at < segment.row_count; at += kTokens) {
    const int64_t tokens = std::min(kTokens, segment.row_count - at);
    const int64_t first_row = segment.row_begin + at;
    StepSizes(args, first_row, tokens, head_begin, heads, dt, decay);
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t head = head_begin + h;
      const int64_t group = head / heads_per_group;
      float* head_state = state + head * args.state_size * args.head_dim;
      for (int64_t t = 0; t < tokens; ++t) {
        const float* row = args.x + (first_row + t) * args.x_stride;
        const float* b = row + inner + group * args.state_size;
        const float step = dt[h * tokens + t];
        ForLanes(args.state_size,
                 [&](auto d, int64_t i) TRUNKLINE_INLINE_LAMBDA {
                   hn::StoreU(hn::Mul(hn::LoadU(d, b + i), hn::Set(d, step)), d,
                              bdt + i);
                 });
        HeadToken token;
        token.x = row + head * args.head_dim;
        token.bdt = bdt;
        token.c = b + args.groups * args.state_size;
        token.decay = decay[h * tokens + t];
        token.skip = args.d[head];
        token.y =
            args.y + (first_row + t) * args.y_stride + head * args.head_dim;
        AdvanceHead(args, token, head_state);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace trunkline::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trunkline::kernels {

HWY_EXPORT(ScanHeads);

int64_t ScanStateBytes(int64_t heads, int64_t head_dim, int64_t state_size) {
  return heads * head_dim * state_size * static_cast<int64_t>(sizeof(float));
}

void SelectiveScan(const KernelContext& context,
                   const SelectiveScanArgs& args) {
  TL_CHECK(context.pool != nullptr);
  TL_CHECK(args.heads > 0 && args.head_dim > 0 && args.state_size > 0);
  TL_CHECK(args.groups > 0 && args.heads % args.groups == 0)
      << args.heads << " heads in " << args.groups << " groups";
  if (args.segments.empty()) return;
  TL_CHECK(args.x != nullptr && args.dt != nullptr && args.y != nullptr &&
           args.dt_bias != nullptr && args.a != nullptr && args.d != nullptr);
  for (const StateSegment& segment : args.segments) {
    TL_CHECK(segment.state != nullptr && segment.row_count >= 0);
  }
  // A head's state is what a task streams; several heads a task when there are
  // more than enough for the threads.
  const int64_t units = static_cast<int64_t>(args.segments.size()) * args.heads;
  const int64_t heads_per_task =
      std::clamp<int64_t>(units / (context.pool->threads() * int64_t{8}), 1, 8);
  const int64_t ranges = (args.heads + heads_per_task - 1) / heads_per_task;
  const int64_t tasks = static_cast<int64_t>(args.segments.size()) * ranges;
  context.pool->ParallelFor(tasks, [&](int64_t task, int) {
    const StateSegment& segment =
        args.segments[static_cast<size_t>(task / ranges)];
    const int64_t head = task % ranges * heads_per_task;
    HWY_DYNAMIC_DISPATCH(ScanHeads)
    (args, segment, head, std::min(heads_per_task, args.heads - head));
  });
}

void NegativeExp(const float* a_log, int64_t count, float* a) {
  ApplyMath(MathFunction::kExp, a_log, count, a);
  for (int64_t i = 0; i < count; ++i) a[i] = -a[i];
}

}  // namespace trunkline::kernels
#endif  // HWY_ONCE
