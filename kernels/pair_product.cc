// Class bf16dot by intrinsics: Highway 1.0.3 has no dot product of bf16 pairs.
// Every function that uses them names its target, so that the rest of the
// program stays runnable on machines without it.

#include "kernels/pair_product.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "common/check.h"
#include "kernels/bf16_dot.h"
#include "kernels/thread_scratch.h"

#if defined(__x86_64__)

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the deliberately undefined operands inside its own intrinsics
// for a mistake of ours.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#else
#include <immintrin.h>
#endif

#define TRUNKLINE_DOT \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))
// For lambdas, which do not inherit it; inlined, so that arrays of vectors that
// they index stay in registers.
#define TRUNKLINE_DOT_LAMBDA                                              \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16"), \
                 always_inline))

namespace trunkline::kernels {
namespace {

constexpr int64_t kPanel = PackedMatrix::kPanel;
constexpr int64_t kLanes = 16;
static_assert(kPanel == 2 * kLanes, "a panel is two vectors of outputs");
// A panel's group: kPanel pairs.
constexpr int64_t kGroupBytes = kPanel * 4;

// Two accumulators a row, two vectors of weights and one of x fill the 32
// registers.
constexpr int kTileRows = 14;
// Pairs of inputs between two visits of the accumulators: a panel's block is a
// third of the first level cache, a tile's part of the rows half of that.
constexpr int64_t kPairBlock = 128;
// How far ahead of the loads memory is fetched, over all panels side by side.
constexpr int64_t kPrefetchBytes = 8192;
constexpr int64_t kLineBytes = 64;

// f(0), f(1), ... as constants, before registers are given out.
template <int... I, class F>
TRUNKLINE_DOT inline __attribute__((always_inline)) void UnrollOver(
    std::integer_sequence<int, I...>, const F& f) {
  (f(std::integral_constant<int, I>()), ...);
}
template <int kCount, class F>
TRUNKLINE_DOT inline __attribute__((always_inline)) void Unroll(const F& f) {
  UnrollOver(std::make_integer_sequence<int, kCount>(), f);
}

TRUNKLINE_DOT inline __attribute__((always_inline)) __m512 Dot(__m512 acc,
                                                               __m512i x,
                                                               __m512i w) {
  return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(x),
                          reinterpret_cast<__m512bh>(w));
}

// R rows, kPanels panels side by side from `w` on (panel_bytes apart), `pairs`
// groups of each. x: the rows' pairs, R words for each pair. acc: R rows of
// kPanels * kPanel floats. For each pair, memory is fetched for reading at
// `fetch`, kFetchLines lines for each panel, which moves on by fetch_step.
template <int R, int kPanels, int kFetchLines>
TRUNKLINE_DOT void DotTile(const uint32_t* x, const std::byte* w,
                           int64_t panel_bytes, int64_t pairs, float* acc,
                           const std::byte* fetch, int64_t fetch_step) {
  constexpr int kVectors = 2 * kPanels;
  __m512 sum[R * kVectors];
  Unroll<R * kVectors>([&](auto i) TRUNKLINE_DOT_LAMBDA {
    sum[i] = _mm512_loadu_ps(acc + i * kLanes);
  });
  const std::byte* panel[kPanels];
  Unroll<kPanels>([&](auto p)
                      TRUNKLINE_DOT_LAMBDA { panel[p] = w + p * panel_bytes; });
  for (int64_t j = 0; j < pairs; ++j) {
    __m512i weight[kVectors];
    Unroll<kPanels>([&](auto p) TRUNKLINE_DOT_LAMBDA {
      Unroll<kFetchLines>([&](auto line) TRUNKLINE_DOT_LAMBDA {
        _mm_prefetch(reinterpret_cast<const char*>(fetch + p * panel_bytes +
                                                   line * kLineBytes),
                     _MM_HINT_T0);
      });
      const std::byte* group = panel[p] + j * kGroupBytes;
      weight[2 * p] = _mm512_loadu_si512(group);
      weight[2 * p + 1] = _mm512_loadu_si512(group + kLineBytes);
    });
    fetch += fetch_step;
    Unroll<R>([&](auto r) TRUNKLINE_DOT_LAMBDA {
      const __m512i value = _mm512_set1_epi32(static_cast<int>(x[r]));
      Unroll<kVectors>([&](auto v) TRUNKLINE_DOT_LAMBDA {
        sum[r * kVectors + v] = Dot(sum[r * kVectors + v], value, weight[v]);
      });
    });
    x += R;
  }
  Unroll<R * kVectors>([&](auto i) TRUNKLINE_DOT_LAMBDA {
    _mm512_storeu_ps(acc + i * kLanes, sum[i]);
  });
}

using TileFn = void (*)(const uint32_t*, const std::byte*, int64_t, int64_t,
                        float*, const std::byte*, int64_t);
template <int kPanels, int kFetchLines, int... R>
constexpr std::array<TileFn, sizeof...(R)> TileTable(
    std::integer_sequence<int, R...>) {
  return {&DotTile<R + 1, kPanels, kFetchLines>...};
}

// As RoundTo of rounding.h.
TRUNKLINE_DOT inline __m512 Round(Activation out, __m512 v) {
  if (out != Activation::kBf16) return v;
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i odd =
      _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded =
      _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x00400000));
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  const __m512i chosen = _mm512_mask_blend_epi32(nan, rounded, quiet);
  return _mm512_castsi512_ps(_mm512_and_si512(
      chosen, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

// Rounds the finished accumulators of one row and `count` outputs into y.
TRUNKLINE_DOT void FinishRow(const float* acc, int64_t count,
                             const ProductOutput& output, float* y) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t left = std::min(count - i, kLanes);
    const auto mask = static_cast<__mmask16>((1u << left) - 1);
    __m512 v = Round(output.out, _mm512_maskz_loadu_ps(mask, acc + i));
    if (output.relu_square) {
      // relu exactly: a NaN stays.
      const __mmask16 negative =
          _mm512_cmp_ps_mask(v, _mm512_setzero_ps(), _CMP_LT_OQ);
      v = _mm512_mask_blend_ps(negative, v, _mm512_setzero_ps());
      v = Round(output.out, _mm512_mul_ps(v, v));
    }
    _mm512_mask_storeu_ps(y + i, mask, v);
  }
}

// `rows` rows of `source` from `first` on, as bf16 pairs: rows words for each
// pair of inputs.
TRUNKLINE_DOT void PackRows(const RowSource& source, int64_t k, int64_t first,
                            int64_t rows, uint32_t* packed) {
  constexpr int64_t kInputs = 2 * kLanes;
  alignas(64) uint32_t pairs[kLanes];
  for (int64_t r = 0; r < rows; ++r) {
    const float* from = source.row(first + r);
    uint32_t* to = packed + r;
    for (int64_t i = 0; i < k; i += kInputs) {
      const int64_t left = std::min(k - i, kInputs);
      const auto mask = static_cast<__mmask32>((uint64_t{1} << left) - 1);
      const __m512 low =
          _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), from + i);
      const __m512 high = _mm512_maskz_loadu_ps(
          static_cast<__mmask16>(mask >> kLanes), from + i + kLanes);
      _mm512_store_si512(
          pairs, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
      const int64_t count = (left + 1) / 2;
      for (int64_t j = 0; j < count; ++j) to[j * rows] = pairs[j];
      to += count * rows;
    }
  }
}

template <int kPanels, int kRowsMax>
TRUNKLINE_DOT void DirectPanels(const uint32_t* packed, int64_t rows,
                                const PackedMatrix& w, int64_t panel,
                                const ProductOutput& output) {
  static constexpr auto kTiles =
      TileTable<kPanels, 2>(std::make_integer_sequence<int, kRowsMax>());
  constexpr int64_t kWidth = kPanels * kPanel;
  alignas(64) float acc[kRowsMax * kWidth];
  std::fill(acc, acc + rows * kWidth, 0.0f);
  kTiles[static_cast<size_t>(rows - 1)](
      packed, w.panel(panel), w.panel_bytes(), w.input_pairs(), acc,
      w.panel(panel) + kPrefetchBytes / kPanels, kGroupBytes);
  const int64_t n_begin = panel * kPanel;
  const int64_t n_count = std::min(kWidth, w.n() - n_begin);
  for (int64_t r = 0; r < rows; ++r) {
    FinishRow(acc + r * kWidth, n_count, output,
              output.y + r * output.y_stride + n_begin);
  }
}

}  // namespace

int64_t PairTileRows() { return kTileRows; }

void PackPairTile(const RowSource& source, int64_t k, const RowTiles& tiles,
                  int64_t tile, uint32_t* packed) {
  const int64_t first = tiles.begin(tile);
  PackRows(source, k, first, tiles.size(tile), packed + first * ((k + 1) / 2));
}

void DirectPairProduct(const RowSource& source, const PackedMatrix& w,
                       int64_t panel_begin, int64_t panel_end,
                       const ProductOutput& output) {
  if (source.rows == 0 || panel_begin >= panel_end) return;
  TL_DCHECK(source.rows <= kTileRows);
  // Each task packs the few rows for itself: cheaper than to wait for another
  // thread that does.
  static thread_local ThreadScratch scratch;
  auto* packed = reinterpret_cast<uint32_t*>(
      scratch.Floats(source.rows * w.input_pairs()));
  PackRows(source, w.k(), 0, source.rows, packed);
  int64_t p = panel_begin;
  if (source.rows <= 3) {
    for (; p + 4 <= panel_end; p += 4)
      DirectPanels<4, 3>(packed, source.rows, w, p, output);
  }
  if (source.rows <= 6) {
    for (; p + 2 <= panel_end; p += 2)
      DirectPanels<2, 6>(packed, source.rows, w, p, output);
  }
  for (; p < panel_end; ++p)
    DirectPanels<1, kTileRows>(packed, source.rows, w, p, output);
}

void TiledPairProduct(const uint32_t* packed, const RowTiles& tiles,
                      const PackedMatrix& w, const TiledRange& range,
                      const ProductOutput& output) {
  if (range.tile_begin >= range.tile_end ||
      range.panel_begin >= range.panel_end) {
    return;
  }
  static constexpr auto kTiles =
      TileTable<1, 1>(std::make_integer_sequence<int, kTileRows>());
  const int64_t pairs = w.input_pairs();
  const int64_t row_begin = tiles.begin(range.tile_begin);
  const int64_t row_end = tiles.begin(range.tile_end);
  const int64_t panels = range.panel_end - range.panel_begin;
  const int64_t tile_count = range.tile_end - range.tile_begin;
  const int64_t acc_floats = (row_end - row_begin) * kPanel;  // of one panel
  static thread_local ThreadScratch scratch;
  float* acc = scratch.Floats(panels * acc_floats);
  std::memset(acc, 0, static_cast<size_t>(panels * acc_floats) * sizeof(float));

  for (int64_t begin = 0; begin < pairs; begin += kPairBlock) {
    const int64_t count = std::min(kPairBlock, pairs - begin);
    for (int64_t p = 0; p < panels; ++p) {
      const std::byte* block =
          w.panel(range.panel_begin + p) + begin * kGroupBytes;
      // The block that comes next is fetched meanwhile, each tile its share.
      const std::byte* next =
          p + 1 < panels
              ? block + w.panel_bytes()
              : w.panel(range.panel_begin) + (begin + count) * kGroupBytes;
      const int64_t step = kGroupBytes / tile_count;
      for (int64_t t = range.tile_begin; t < range.tile_end; ++t) {
        const int64_t rows = tiles.size(t);
        kTiles[static_cast<size_t>(rows - 1)](
            packed + tiles.begin(t) * pairs + begin * rows, block,
            w.panel_bytes(), count,
            acc + p * acc_floats + (tiles.begin(t) - row_begin) * kPanel,
            next + (t - range.tile_begin) * step * count, step);
      }
    }
  }
  FinishRange(acc, tiles, w, range, output, &FinishRow);
}

bool MachineHasBf16Dot() {
  static const bool has = __builtin_cpu_supports("avx512f") > 0 &&
                          __builtin_cpu_supports("avx512bw") > 0 &&
                          __builtin_cpu_supports("avx512dq") > 0 &&
                          __builtin_cpu_supports("avx512vl") > 0 &&
                          __builtin_cpu_supports("avx512bf16") > 0;
  return has;
}

TRUNKLINE_DOT void Bf16DotLanes(const uint32_t* x, const uint32_t* w,
                                int64_t count, float* acc) {
  for (int64_t i = 0; i < count * kLanes; i += kLanes) {
    _mm512_storeu_ps(acc + i,
                     Dot(_mm512_loadu_ps(acc + i), _mm512_loadu_si512(x + i),
                         _mm512_loadu_si512(w + i)));
  }
}

TRUNKLINE_DOT double Bf16DotRounds(int64_t rounds, float* sink) {
  constexpr int kChains = 16;
  __m512 sum[kChains];
  // Different values: equal chains would be merged by the compiler.
  Unroll<kChains>([&](auto i) TRUNKLINE_DOT_LAMBDA {
    sum[i] = _mm512_set1_ps(static_cast<float>(i + 1));
  });
  // The pairs (0.5, 0.25) and (1, -1), small enough to never overflow.
  const __m512i x = _mm512_set1_epi32(0x3e803f00);
  const __m512i w = _mm512_set1_epi32(static_cast<int>(0xbf803f80u));
  for (int64_t r = 0; r < rounds; ++r) {
    Unroll<kChains>([&](auto i)
                        TRUNKLINE_DOT_LAMBDA { sum[i] = Dot(sum[i], x, w); });
  }
  __m512 all = sum[0];
  Unroll<kChains - 1>([&](auto i) TRUNKLINE_DOT_LAMBDA {
    all = _mm512_add_ps(all, sum[i + 1]);
  });
  *sink = _mm512_cvtss_f32(all);
  return 4.0 * kChains * kLanes * static_cast<double>(rounds);
}

}  // namespace trunkline::kernels

#else  // no x86: no such class, and no matrix is packed for it

namespace trunkline::kernels {

bool MachineHasBf16Dot() { return false; }
int64_t PairTileRows() { return 1; }
void PackPairTile(const RowSource&, int64_t, const RowTiles&, int64_t,
                  uint32_t*) {
  TL_CHECK(false);
}
void TiledPairProduct(const uint32_t*, const RowTiles&, const PackedMatrix&,
                      const TiledRange&, const ProductOutput&) {
  TL_CHECK(false);
}
void DirectPairProduct(const RowSource&, const PackedMatrix&, int64_t, int64_t,
                       const ProductOutput&) {
  TL_CHECK(false);
}
void Bf16DotLanes(const uint32_t*, const uint32_t*, int64_t, float*) {
  TL_CHECK(false);
}
double Bf16DotRounds(int64_t, float*) { return 0.0; }

}  // namespace trunkline::kernels
#endif
