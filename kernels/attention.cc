// attention.h on SIMD. Within a block, keys are d-major so that lanes are
// positions, and values are position-major so that lanes are channels: no sum
// ever crosses lanes, but for the one that contract 2 fixes. The query heads
// that share a kv head go through a block together.

#include "kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "common/bfloat16.h"
#include "common/check.h"
#include "kernels/thread_scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace trunkline::kernels {
namespace HWY_NAMESPACE {

// Heads of the largest tile: one vector of keys or values for all of them, so
// that widening it costs little beside. Smaller tiles take two vectors, to have
// enough independent sums for the latency of the fused multiply-add.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
constexpr size_t kHeadsPerTile = 16;
#else
constexpr size_t kHeadsPerTile = 8;
#endif
template <size_t R>
constexpr size_t kTileVectors = R == kHeadsPerTile ? 1 : 2;

template <class D>
HWY_INLINE hn::Vec<D> LoadElement(D d, const float* p) {
  return hn::LoadU(d, p);
}
template <class D>
HWY_INLINE hn::Vec<D> LoadElement(D d, const uint16_t* p) {
  return LoadBf16(d, p);
}

// The positions of a block that a row may see.
struct Present {
  int64_t begin;
  int64_t end;
};

// Cache lines to fetch one at a time while the arithmetic runs: the values of
// the block whose keys are at work, then the keys of the next block.
// Into the second level cache: the first is full of the block at work. A tile
// that makes twice as many turns takes each line in two.
struct Lines {
  const std::byte* at;
  const std::byte* end;

  // kVectors of T were loaded.
  template <class T, size_t kVectors>
  HWY_INLINE void Next() {
    if (at >= end) return;
    __builtin_prefetch(at, 0, 2);
    at += std::min<size_t>(16 * kVectors * sizeof(T), 64);
  }
};

// scores[r][j] = sum over d of q[d][r] * k[d][j], for the vectors of positions
// that hold a present one.
template <size_t R, class T>
HWY_INLINE void BlockScores(const float* q, const T* k, int64_t head_dim,
                            Present present, Lines fetch, float* scores) {
  const FullTag d;
  constexpr size_t kVectors = kTileVectors<R>;
  constexpr auto kLanes = static_cast<int64_t>(hn::MaxLanes(FullTag()));
  constexpr int64_t kUnit = static_cast<int64_t>(kVectors) * kLanes;
  for (int64_t at = present.begin / kUnit * kUnit; at < present.end;
       at += kUnit) {
    Vec sum[R * kVectors];
    Unroll<R * kVectors>([&](auto i)
                             TRUNKLINE_INLINE_LAMBDA { sum[i] = hn::Zero(d); });
    for (int64_t i = 0; i < head_dim; ++i) {
      fetch.Next<T, kVectors>();
      Vec key[kVectors];
      Unroll<kVectors>([&](auto n) TRUNKLINE_INLINE_LAMBDA {
        key[n] = LoadElement(
            d, k + i * kKvBlock + at + static_cast<int64_t>(n) * kLanes);
      });
      Unroll<R>([&](auto r) TRUNKLINE_INLINE_LAMBDA {
        const Vec value = hn::Set(d, q[i * static_cast<int64_t>(R) + r]);
        Unroll<kVectors>([&](auto n) TRUNKLINE_INLINE_LAMBDA {
          sum[r * kVectors + n] = Fma(value, key[n], sum[r * kVectors + n]);
        });
      });
    }
    Unroll<R>([&](auto r) TRUNKLINE_INLINE_LAMBDA {
      float* row = scores + static_cast<int64_t>(r) * kKvBlock + at;
      Unroll<kVectors>([&](auto n) TRUNKLINE_INLINE_LAMBDA {
        hn::StoreU(sum[r * kVectors + n], d,
                   row + static_cast<int64_t>(n) * kLanes);
      });
    });
  }
}

// What the online softmax carries from block to block for one head.
struct RunningSoftmax {
  float max = -std::numeric_limits<float>::infinity();
  float sum = 0.0f;
  float rescale = 0.0f;  // of the outputs so far, for the block at hand
};

// The largest of `start`, which is a number, and count scores. Any order gives
// the same weights: a NaN is never larger, and the sign of a zero does not show
// in exp(s - max).
HWY_INLINE float MaxOf(const float* scores, int64_t count, float start) {
  const FullTag d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto larger = hn::Set(d, start);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto s = hn::LoadU(d, scores + i);
    larger = hn::IfThenElse(hn::Gt(s, larger), s, larger);
  }
  float max = hn::GetLane(hn::MaxOfLanes(d, larger));
  for (; i < count; ++i) max = scores[i] > max ? scores[i] : max;
  return max;
}

// Turns R heads' scores into weights p_j (0 where absent). Step by step for all
// heads: one head alone is a chain of operations that wait for each other.
template <size_t R>
HWY_INLINE void BlockWeights(float scale, Present present, bool first_block,
                             float* scores, RunningSoftmax* running) {
  const int64_t count = present.end - present.begin;
  HWY_ALIGN float max[16];
  HWY_ALIGN float rescale[16];
  for (size_t r = 0; r < R; ++r) {
    float* row = scores + static_cast<int64_t>(r) * kKvBlock + present.begin;
    ForLanes(count, [&](auto dl, int64_t i) TRUNKLINE_INLINE_LAMBDA {
      hn::StoreU(hn::Mul(hn::LoadU(dl, row + i), hn::Set(dl, scale)), dl,
                 row + i);
    });
    max[r] = MaxOf(row, count, running[r].max);
    rescale[r] = running[r].max - max[r];
  }
  if (first_block) {
    std::fill(rescale, rescale + R, 0.0f);
  } else {
    ForLanes(R, [&](auto dl, int64_t i) TRUNKLINE_INLINE_LAMBDA {
      hn::StoreU(VecExp(dl, hn::LoadU(dl, rescale + i)), dl, rescale + i);
    });
  }
  for (size_t r = 0; r < R; ++r) {
    float* row = scores + static_cast<int64_t>(r) * kKvBlock;
    ForLanes(count, [&](auto dl, int64_t i) TRUNKLINE_INLINE_LAMBDA {
      float* place = row + present.begin + i;
      const auto s = hn::LoadU(dl, place);
      hn::StoreU(VecExp(dl, hn::Sub(s, hn::Set(dl, max[r]))), dl, place);
    });
    std::fill(row, row + present.begin, 0.0f);
    std::fill(row + present.end, row + kKvBlock, 0.0f);
  }
  for (size_t r = 0; r < R; ++r) {
    const float* row = scores + static_cast<int64_t>(r) * kKvBlock;
    const float sum = SumInContractOrder(
        kKvBlock, [&](auto dl, int64_t j) TRUNKLINE_INLINE_LAMBDA {
          return hn::LoadU(dl, row + j);
        });
    const OneTag one;
    running[r].sum =
        hn::GetLane(Fma(hn::Set(one, running[r].sum), hn::Set(one, rescale[r]),
                        hn::Set(one, sum)));
    running[r].rescale = rescale[r];
    running[r].max = max[r];
  }
}

// out[r][i..] = out * rescale + sum over present j of p[r][j] * v[j][i..], for
// kVectors vectors of channels.
template <size_t R, size_t kVectors, class D, class T>
HWY_INLINE void AddValues(D d, const float* weights, const T* v,
                          int64_t head_dim, Present present,
                          const RunningSoftmax* running, Lines& fetch,
                          float* out, int64_t i) {
  using V = hn::Vec<D>;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  V acc[R * kVectors];
  Unroll<R>([&](auto r) TRUNKLINE_INLINE_LAMBDA {
    const V rescale = hn::Set(d, running[r].rescale);
    Unroll<kVectors>([&](auto n) TRUNKLINE_INLINE_LAMBDA {
      const float* place = out + static_cast<int64_t>(r) * head_dim + i +
                           static_cast<int64_t>(n) * lanes;
      acc[r * kVectors + n] = hn::Mul(hn::LoadU(d, place), rescale);
    });
  });
  for (int64_t j = present.begin; j < present.end; ++j) {
    fetch.Next<T, kVectors>();
    Unroll<kVectors>([&](auto n) TRUNKLINE_INLINE_LAMBDA {
      const V value = LoadElement(
          d, v + j * head_dim + i + static_cast<int64_t>(n) * lanes);
      Unroll<R>([&](auto r) TRUNKLINE_INLINE_LAMBDA {
        const V p = hn::Set(d, weights[static_cast<int64_t>(r) * kKvBlock + j]);
        acc[r * kVectors + n] = Fma(p, value, acc[r * kVectors + n]);
      });
    });
  }
  Unroll<R>([&](auto r) TRUNKLINE_INLINE_LAMBDA {
    Unroll<kVectors>([&](auto n) TRUNKLINE_INLINE_LAMBDA {
      hn::StoreU(acc[r * kVectors + n], d,
                 out + static_cast<int64_t>(r) * head_dim + i +
                     static_cast<int64_t>(n) * lanes);
    });
  });
}

template <size_t R, class T>
HWY_INLINE void AddBlockValues(const float* weights, const T* v,
                               int64_t head_dim, Present present,
                               const RunningSoftmax* running, Lines fetch,
                               float* out) {
  const FullTag d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  constexpr size_t kVectors = kTileVectors<R>;
  constexpr auto kStep = static_cast<int64_t>(kVectors);
  int64_t i = 0;
  for (; i + kStep * lanes <= head_dim; i += kStep * lanes) {
    AddValues<R, kVectors>(d, weights, v, head_dim, present, running, fetch,
                           out, i);
  }
  for (; i + lanes <= head_dim; i += lanes) {
    AddValues<R, 1>(d, weights, v, head_dim, present, running, fetch, out, i);
  }
  for (; i < head_dim; ++i) {
    AddValues<R, 1>(OneTag(), weights, v, head_dim, present, running, fetch,
                    out, i);
  }
}

// One block of one kv head, as a row sees it.
template <class T>
struct Block {
  const T* k;
  const T* v;
  const T* next_k;  // of the row's next block, or null
  Present present;
  bool first;
};

// One block for R query heads. q: [head_dim, R].
template <size_t R, class T>
void AttendBlock(const AttentionArgs& args, const Block<T>& block,
                 const float* q, float* scores, RunningSoftmax* running,
                 float* out) {
  const int64_t plane_bytes =
      args.head_dim * kKvBlock * static_cast<int64_t>(sizeof(T));
  const auto lines = [&](const T* from) TRUNKLINE_INLINE_LAMBDA {
    const auto* begin = reinterpret_cast<const std::byte*>(from);
    return Lines{begin, begin + (from != nullptr ? plane_bytes : 0)};
  };
  BlockScores<R>(q, block.k, args.head_dim, block.present, lines(block.v),
                 scores);
  BlockWeights<R>(args.scale, block.present, block.first, scores, running);
  AddBlockValues<R>(scores, block.v, args.head_dim, block.present, running,
                    lines(block.next_k), out);
}

// One block for any number of heads: tiles of a power of two.
template <size_t R, class T>
HWY_INLINE void AttendTiles(const AttentionArgs& args, const Block<T>& block,
                            int64_t heads, const float* q, float* scores,
                            RunningSoftmax* running, float* out) {
  int64_t h = 0;
  for (; h + static_cast<int64_t>(R) <= heads; h += static_cast<int64_t>(R)) {
    AttendBlock<R>(args, block, q + h * args.head_dim, scores, running + h,
                   out + h * args.head_dim);
  }
  if constexpr (R > 1) {
    AttendTiles<R / 2>(args, block, heads - h, q + h * args.head_dim, scores,
                       running + h, out + h * args.head_dim);
  }
}

// Queries [heads, head_dim] as the tiles of AttendTiles read them: the heads of
// a tile side by side.
template <size_t R>
HWY_INLINE void PackQueries(const float* q, int64_t heads, int64_t head_dim,
                            float* packed) {
  int64_t h = 0;
  for (; h + static_cast<int64_t>(R) <= heads; h += static_cast<int64_t>(R)) {
    for (size_t r = 0; r < R; ++r) {
      const float* from = q + (h + static_cast<int64_t>(r)) * head_dim;
      float* to = packed + h * head_dim + r;
      for (int64_t i = 0; i < head_dim; ++i)
        to[i * static_cast<int64_t>(R)] = from[i];
    }
  }
  if constexpr (R > 1) {
    PackQueries<R / 2>(q + h * head_dim, heads - h, head_dim,
                       packed + h * head_dim);
  }
}

// The query heads [head, head + heads) of one row, all of one kv head: each
// block is read once for all of them.
template <class T>
void AttendHeads(const AttentionArgs& args, const AttentionSegment& segment,
                 int64_t row, int64_t position, int64_t head, int64_t heads) {
  constexpr auto kTile = static_cast<int64_t>(kHeadsPerTile);
  constexpr auto kRunningFloats =
      static_cast<int64_t>(sizeof(RunningSoftmax) / sizeof(float));
  static thread_local ThreadScratch scratch;
  float* scores = scratch.Floats(kTile * kKvBlock +
                                 heads * (2 * args.head_dim + kRunningFloats));
  float* q = scores + kTile * kKvBlock;
  float* out = q + heads * args.head_dim;
  std::fill(out, out + heads * args.head_dim, 0.0f);
  auto* running =
      reinterpret_cast<RunningSoftmax*>(out + heads * args.head_dim);
  for (int64_t h = 0; h < heads; ++h) running[h] = RunningSoftmax();

  PackQueries<kHeadsPerTile>(
      args.q + row * args.q_stride + head * args.head_dim, heads, args.head_dim,
      q);
  const int64_t kv_head = head / (args.heads / args.kv_heads);
  const int64_t plane = args.head_dim * kKvBlock;
  const auto keys = [&](int64_t b) TRUNKLINE_INLINE_LAMBDA {
    return reinterpret_cast<const T*>(segment.blocks[static_cast<size_t>(b)]) +
           kv_head * plane;
  };
  const int64_t first =
      args.window > 0 ? std::max<int64_t>(position - args.window + 1, 0) : 0;
  const int64_t last_block = position / kKvBlock;
  for (int64_t b = first / kKvBlock; b <= last_block; ++b) {
    Block<T> block;
    block.k = keys(b);
    block.v = block.k + args.kv_heads * plane;
    block.next_k = b < last_block ? keys(b + 1) : nullptr;
    block.present = {std::max<int64_t>(first - b * kKvBlock, 0),
                     std::min(position - b * kKvBlock + 1, kKvBlock)};
    block.first = b == first / kKvBlock;
    AttendTiles<kHeadsPerTile>(args, block, heads, q, scores, running, out);
  }
  for (int64_t h = 0; h < heads; ++h) {
    const float* o = out + h * args.head_dim;
    const float sum = running[h].sum;
    float* y = args.y + row * args.y_stride + (head + h) * args.head_dim;
    ForLanes(args.head_dim, [&](auto d, int64_t i) TRUNKLINE_INLINE_LAMBDA {
      const auto mean = hn::Div(hn::LoadU(d, o + i), hn::Set(d, sum));
      hn::StoreU(RoundTo(d, args.out, mean), d, y + i);
    });
  }
}

void AttendRow(const AttentionArgs& args, const AttentionSegment& segment,
               int64_t row, int64_t position, int64_t head, int64_t heads) {
  if (args.out == Activation::kBf16) {
    AttendHeads<uint16_t>(args, segment, row, position, head, heads);
  } else {
    AttendHeads<float>(args, segment, row, position, head, heads);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace trunkline::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trunkline::kernels {
namespace {

HWY_EXPORT(AttendRow);

// Rows of one segment that one task attends for.
constexpr int64_t kRowsPerTask = 4;

template <typename T>
T Narrowed(float value) {
  if constexpr (sizeof(T) == 2) {
    return FloatToBf16(value);
  } else {
    return value;
  }
}

// Keys and values of the segment's rows for one kv head into their places.
template <typename T>
void Append(const AttentionArgs& args, const AttentionSegment& segment,
            int64_t kv_head) {
  const int64_t plane = args.head_dim * kKvBlock;
  for (int64_t r = 0; r < segment.row_count; ++r) {
    const int64_t position = segment.position + r;
    auto* block = reinterpret_cast<T*>(
        segment.blocks[static_cast<size_t>(position / kKvBlock)]);
    const int64_t place = position % kKvBlock;
    const int64_t row = segment.row_begin + r;
    const float* k = args.k + row * args.k_stride + kv_head * args.head_dim;
    const float* v = args.v + row * args.v_stride + kv_head * args.head_dim;
    T* k_to = block + kv_head * plane + place;
    T* v_to = block + (args.kv_heads + kv_head) * plane + place * args.head_dim;
    for (int64_t i = 0; i < args.head_dim; ++i) {
      k_to[i * kKvBlock] = Narrowed<T>(k[i]);
      v_to[i] = Narrowed<T>(v[i]);
    }
  }
}

void CheckArgs(const AttentionArgs& args) {
  TL_CHECK(args.heads > 0 && args.kv_heads > 0 && args.head_dim > 0);
  TL_CHECK_EQ(args.heads % args.kv_heads, 0);
  TL_CHECK_GE(args.window, 0);
  TL_CHECK(args.q != nullptr && args.k != nullptr && args.v != nullptr &&
           args.y != nullptr);
  for (const AttentionSegment& segment : args.segments) {
    TL_CHECK(segment.row_count >= 0 && segment.position >= 0);
    TL_CHECK_GE(static_cast<int64_t>(segment.blocks.size()) * kKvBlock,
                segment.position + segment.row_count)
        << "too few KV blocks";
  }
}

int64_t RowTasks(const AttentionSegment& segment) {
  return (segment.row_count + kRowsPerTask - 1) / kRowsPerTask;
}

}  // namespace

int64_t KvBlockBytes(int64_t kv_heads, int64_t head_dim, Activation type) {
  return 2 * kv_heads * head_dim * kKvBlock *
         (type == Activation::kBf16 ? 2 : 4);
}

void Attention(const KernelContext& context, const AttentionArgs& args) {
  TL_CHECK(context.pool != nullptr);
  if (args.segments.empty()) return;
  CheckArgs(args);
  const auto segments = static_cast<int64_t>(args.segments.size());
  context.pool->ParallelFor(segments * args.kv_heads, [&](int64_t task, int) {
    const AttentionSegment& segment =
        args.segments[static_cast<size_t>(task / args.kv_heads)];
    if (args.out == Activation::kBf16) {
      Append<uint16_t>(args, segment, task % args.kv_heads);
    } else {
      Append<float>(args, segment, task % args.kv_heads);
    }
  });

  int64_t row_tasks = 0;
  for (const AttentionSegment& segment : args.segments) {
    row_tasks += RowTasks(segment);
  }
  // The heads of one kv head stay together, so that its keys and values are
  // read once, unless threads would idle.
  const int64_t group = args.heads / args.kv_heads;
  int64_t parts = 1;
  while (row_tasks * args.kv_heads * parts < context.pool->threads() &&
         group / (parts * 2) >= 4) {
    parts *= 2;
  }
  const int64_t part_heads = (group + parts - 1) / parts;
  const int64_t tasks_per_row = args.kv_heads * parts;
  context.pool->ParallelFor(row_tasks * tasks_per_row, [&](int64_t task, int) {
    int64_t row_task = task / tasks_per_row;
    size_t s = 0;
    while (row_task >= RowTasks(args.segments[s])) {
      row_task -= RowTasks(args.segments[s]);
      ++s;
    }
    const AttentionSegment& segment = args.segments[s];
    const int64_t kv_head = task % tasks_per_row / parts;
    const int64_t begin = task % parts * part_heads;
    const int64_t heads = std::min(part_heads, group - begin);
    if (heads <= 0) return;
    const int64_t row_end =
        std::min((row_task + 1) * kRowsPerTask, segment.row_count);
    for (int64_t r = row_task * kRowsPerTask; r < row_end; ++r) {
      HWY_DYNAMIC_DISPATCH(AttendRow)
      (args, segment, segment.row_begin + r, segment.position + r,
       kv_head * group + begin, heads);
    }
  });
}

}  // namespace trunkline::kernels
#endif  // HWY_ONCE
