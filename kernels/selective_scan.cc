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

// Tokens that a head's state passes through before it goes back to memory, and
// the fewest for which that pays.
constexpr int64_t kChunk = 16;
constexpr int64_t kChunkMin = 3;

// State rows and vectors of channels that stay in registers meanwhile, beside
// as many vectors of x and y.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
constexpr size_t kTileVectors = 4;
#else
constexpr size_t kTileVectors = 2;
#endif
constexpr size_t kTileStates = 4;

// The tokens of one head that are advanced together. Everything is packed, so
// that rows a power of two apart do not fight for the same lines of the cache.
struct HeadChunk {
  int64_t tokens = 0;
  const float* decay = nullptr;  // [tokens], exp(dt * A)
  float* x = nullptr;            // [tokens, head_dim]
  float* bdt = nullptr;          // [tokens, state_size], B * dt
  float* c = nullptr;            // [tokens, state_size]
  float* y = nullptr;            // [tokens, head_dim], without the skip
};

// Takes the state rows n .. n+kStates-1 and the vectors of channels from p on
// through all tokens of the chunk. Each element sees the same operations in the
// same order as token by token; y waits in memory between two tiles, which is
// exact.
template <size_t kStates, size_t kVectors, class D>
HWY_INLINE void AdvanceTile(D d, const SelectiveScanArgs& args,
                            const HeadChunk& chunk, float* state, int64_t n,
                            int64_t p) {
  using V = hn::Vec<D>;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t head_dim = args.head_dim;
  const int64_t state_size = args.state_size;
  float* corner = state + n * head_dim + p;
  V s[kStates * kVectors];
  Unroll<kStates>([&](auto i) TRUNKLINE_INLINE_LAMBDA {
    Unroll<kVectors>([&](auto v) TRUNKLINE_INLINE_LAMBDA {
      s[i * kVectors + v] =
          hn::LoadU(d, corner + static_cast<int64_t>(i) * head_dim +
                           static_cast<int64_t>(v) * lanes);
    });
  });
  const float* x_row = chunk.x + p;
  const float* bdt_row = chunk.bdt + n;
  const float* c_row = chunk.c + n;
  float* y_row = chunk.y + p;
  for (int64_t t = 0; t < chunk.tokens; ++t) {
    const V decay = hn::Set(d, chunk.decay[t]);
    V x[kVectors];
    V y[kVectors];
    Unroll<kVectors>([&](auto v) TRUNKLINE_INLINE_LAMBDA {
      x[v] = hn::LoadU(d, x_row + static_cast<int64_t>(v) * lanes);
      y[v] = hn::LoadU(d, y_row + static_cast<int64_t>(v) * lanes);
    });
    Unroll<kStates>([&](auto i) TRUNKLINE_INLINE_LAMBDA {
      const V bdt = hn::Set(d, bdt_row[i]);
      const V c = hn::Set(d, c_row[i]);
      Unroll<kVectors>([&](auto v) TRUNKLINE_INLINE_LAMBDA {
        V& element = s[i * kVectors + v];
        element = Fma(element, decay, hn::Mul(bdt, x[v]));
        y[v] = Fma(element, c, y[v]);
      });
    });
    Unroll<kVectors>([&](auto v) TRUNKLINE_INLINE_LAMBDA {
      hn::StoreU(y[v], d, y_row + static_cast<int64_t>(v) * lanes);
    });
    x_row += head_dim;
    y_row += head_dim;
    bdt_row += state_size;
    c_row += state_size;
  }
  Unroll<kStates>([&](auto i) TRUNKLINE_INLINE_LAMBDA {
    Unroll<kVectors>([&](auto v) TRUNKLINE_INLINE_LAMBDA {
      hn::StoreU(s[i * kVectors + v], d,
                 corner + static_cast<int64_t>(i) * head_dim +
                     static_cast<int64_t>(v) * lanes);
    });
  });
}

template <size_t kVectors, class D>
HWY_INLINE void AdvanceColumns(D d, const SelectiveScanArgs& args,
                               const HeadChunk& chunk, float* state,
                               int64_t p) {
  int64_t n = 0;
  for (; n + static_cast<int64_t>(kTileStates) <= args.state_size;
       n += kTileStates) {
    AdvanceTile<kTileStates, kVectors>(d, args, chunk, state, n, p);
  }
  for (; n < args.state_size; ++n) {
    AdvanceTile<1, kVectors>(d, args, chunk, state, n, p);
  }
}

HWY_INLINE void AdvanceHeadChunk(const SelectiveScanArgs& args,
                                 const HeadChunk& chunk, float* state) {
  const FullTag d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t wide = static_cast<int64_t>(kTileVectors) * lanes;
  int64_t p = 0;
  for (; p + wide <= args.head_dim; p += wide) {
    AdvanceColumns<kTileVectors>(d, args, chunk, state, p);
  }
  for (; p + lanes <= args.head_dim; p += lanes) {
    AdvanceColumns<1>(d, args, chunk, state, p);
  }
  for (; p < args.head_dim; ++p) {
    AdvanceColumns<1>(OneTag(), args, chunk, state, p);
  }
}

// Rows [row, row + chunk.tokens) of one head: packs, advances, adds the skip.
// C is the whole group's, so it is packed for the first of its heads only.
void ScanChunk(const SelectiveScanArgs& args, int64_t row, int64_t head,
               const float* dt, bool pack_c, const HeadChunk& chunk,
               float* state) {
  const int64_t inner = args.heads * args.head_dim;
  const int64_t group = head / (args.heads / args.groups);
  for (int64_t t = 0; t < chunk.tokens; ++t) {
    const float* from = args.x + (row + t) * args.x_stride;
    const float* b = from + inner + group * args.state_size;
    std::copy_n(from + head * args.head_dim, args.head_dim,
                chunk.x + t * args.head_dim);
    if (pack_c) {
      std::copy_n(b + args.groups * args.state_size, args.state_size,
                  chunk.c + t * args.state_size);
    }
    float* bdt = chunk.bdt + t * args.state_size;
    ForLanes(args.state_size, [&](auto d, int64_t i) TRUNKLINE_INLINE_LAMBDA {
      hn::StoreU(hn::Mul(hn::LoadU(d, b + i), hn::Set(d, dt[t])), d, bdt + i);
    });
  }
  std::fill_n(chunk.y, chunk.tokens * args.head_dim, 0.0f);
  AdvanceHeadChunk(args, chunk, state);
  for (int64_t t = 0; t < chunk.tokens; ++t) {
    const float* x = chunk.x + t * args.head_dim;
    const float* sum = chunk.y + t * args.head_dim;
    float* y = args.y + (row + t) * args.y_stride + head * args.head_dim;
    ForLanes(args.head_dim, [&](auto d, int64_t i) TRUNKLINE_INLINE_LAMBDA {
      const auto out = Fma(hn::LoadU(d, x + i), hn::Set(d, args.d[head]),
                           hn::LoadU(d, sum + i));
      hn::StoreU(RoundTo(d, args.out, out), d, y + i);
    });
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

// Token by token: for the few rows of a decode step.
void ScanTokens(const SelectiveScanArgs& args, int64_t row, int64_t tokens,
                int64_t head, const float* dt, const float* decay, float* bdt,
                float* state) {
  const int64_t inner = args.heads * args.head_dim;
  const int64_t group = head / (args.heads / args.groups);
  for (int64_t t = 0; t < tokens; ++t) {
    const float* from = args.x + (row + t) * args.x_stride;
    const float* b = from + inner + group * args.state_size;
    ForLanes(args.state_size, [&](auto d, int64_t i) TRUNKLINE_INLINE_LAMBDA {
      hn::StoreU(hn::Mul(hn::LoadU(d, b + i), hn::Set(d, dt[t])), d, bdt + i);
    });
    HeadToken token;
    token.x = from + head * args.head_dim;
    token.bdt = bdt;
    token.c = b + args.groups * args.state_size;
    token.decay = decay[t];
    token.skip = args.d[head];
    token.y = args.y + (row + t) * args.y_stride + head * args.head_dim;
    AdvanceHead(args, token, state);
  }
}

void ScanHeads(const SelectiveScanArgs& args, const StateSegment& segment,
               int64_t head_begin, int64_t heads) {
  static thread_local ThreadScratch scratch;
  const int64_t chunk_floats = kChunk * (args.head_dim + args.state_size);
  float* dt = scratch.Floats(2 * heads * kTokens + 2 * chunk_floats);
  float* decay = dt + heads * kTokens;
  HeadChunk chunk;
  chunk.x = decay + heads * kTokens;
  chunk.y = chunk.x + kChunk * args.head_dim;
  chunk.bdt = chunk.y + kChunk * args.head_dim;
  chunk.c = chunk.bdt + kChunk * args.state_size;
  const int64_t heads_per_group = args.heads / args.groups;
  auto* state = reinterpret_cast<float*>(segment.state);
  for (int64_t at = 0; at < segment.row_count; at += kTokens) {
    const int64_t tokens = std::min(kTokens, segment.row_count - at);
    StepSizes(args, segment.row_begin + at, tokens, head_begin, heads, dt,
              decay);
    for (int64_t begin = 0; begin < tokens; begin += kChunk) {
      chunk.tokens = std::min(kChunk, tokens - begin);
      const int64_t row = segment.row_begin + at + begin;
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t head = head_begin + h;
        float* head_state = state + head * args.state_size * args.head_dim;
        const float* head_dt = dt + h * tokens + begin;
        chunk.decay = decay + h * tokens + begin;
        if (chunk.tokens < kChunkMin) {
          ScanTokens(args, row, chunk.tokens, head, head_dt, chunk.decay,
                     chunk.bdt, head_state);
        } else {
          const bool pack_c = h == 0 || head % heads_per_group == 0;
          ScanChunk(args, row, head, head_dt, pack_c, chunk, head_state);
        }
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
