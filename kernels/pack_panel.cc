#include "kernels/pack_panel.h"

#include <algorithm>
#include <cstring>

#include "kernels/packed_matrix.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/pack_panel.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace trunkline::kernels {
namespace HWY_NAMESPACE {

constexpr int64_t kPanelRows = PackedMatrix::kPanel;

// Columns packed by vectors: a multiple of the block; the caller does the rest.
// Without vectors: none.
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
int64_t PackColumns(const std::byte*, int64_t, DType, std::byte*) { return 0; }
#else

using Words = hn::CappedTag<uint32_t, kPanelRows / 2>;
using WordVec = hn::Vec<Words>;
constexpr size_t kLanes = hn::MaxLanes(Words());
constexpr size_t kLanesPerBlock = 4;
constexpr size_t kBlocks = kLanes / kLanesPerBlock;

// How far ahead of the loads each row is fetched.
constexpr int64_t kFetchBytes = 1024;
// Bytes of a row between two turns: its cache line is used up while it is
// there, also when the rows lie a power of two apart.
constexpr int64_t kLineBytes = 64;

// The lanes (row, column) of four vectors become (column, row) inside each
// block of four lanes.
HWY_INLINE void TransposeLanes(WordVec& a, WordVec& b, WordVec& c, WordVec& d) {
  const Words words;
  const hn::Repartition<uint64_t, Words> pairs;
  const auto ab_low = hn::BitCast(pairs, hn::InterleaveLower(words, a, b));
  const auto ab_high = hn::BitCast(pairs, hn::InterleaveUpper(words, a, b));
  const auto cd_low = hn::BitCast(pairs, hn::InterleaveLower(words, c, d));
  const auto cd_high = hn::BitCast(pairs, hn::InterleaveUpper(words, c, d));
  a = hn::BitCast(words, hn::InterleaveLower(pairs, ab_low, cd_low));
  b = hn::BitCast(words, hn::InterleaveUpper(pairs, ab_low, cd_low));
  c = hn::BitCast(words, hn::InterleaveLower(pairs, ab_high, cd_high));
  d = hn::BitCast(words, hn::InterleaveUpper(pairs, ab_high, cd_high));
}

// The same for the blocks of kBlocks vectors: i, i + 4, i + 8, ...
template <size_t kFirst>
HWY_INLINE void TransposeBlocks(WordVec* v) {
  const Words words;
  if constexpr (kBlocks == 2) {
    const WordVec a = v[kFirst];
    const WordVec b = v[kFirst + 4];
    v[kFirst] = hn::ConcatLowerLower(words, b, a);
    v[kFirst + 4] = hn::ConcatUpperUpper(words, b, a);
  } else if constexpr (kBlocks == 4) {
    const auto even = [](WordVec a, WordVec b) TRUNKLINE_INLINE_LAMBDA {
      return hn::OddEvenBlocks(hn::SwapAdjacentBlocks(b), a);
    };
    const auto odd = [](WordVec a, WordVec b) TRUNKLINE_INLINE_LAMBDA {
      return hn::OddEvenBlocks(b, hn::SwapAdjacentBlocks(a));
    };
    const WordVec ab_even = even(v[kFirst], v[kFirst + 4]);
    const WordVec ab_odd = odd(v[kFirst], v[kFirst + 4]);
    const WordVec cd_even = even(v[kFirst + 8], v[kFirst + 12]);
    const WordVec cd_odd = odd(v[kFirst + 8], v[kFirst + 12]);
    v[kFirst] = hn::ConcatLowerLower(words, cd_even, ab_even);
    v[kFirst + 4] = hn::ConcatLowerLower(words, cd_odd, ab_odd);
    v[kFirst + 8] = hn::ConcatUpperUpper(words, cd_even, ab_even);
    v[kFirst + 12] = hn::ConcatUpperUpper(words, cd_odd, ab_odd);
  }
}

// kLanes columns of kLanes 32-bit lanes of the group: load(j) gives the columns
// of lane j.
template <class LoadLane>
HWY_INLINE void PackSquare(const LoadLane& load, std::byte* group,
                           int64_t group_bytes) {
  WordVec v[kLanes];
  Unroll<kLanes>([&](auto j) TRUNKLINE_INLINE_LAMBDA { v[j] = load(j); });
  Unroll<kBlocks>([&](auto b) TRUNKLINE_INLINE_LAMBDA {
    TransposeLanes(v[4 * b], v[4 * b + 1], v[4 * b + 2], v[4 * b + 3]);
  });
  Unroll<kLanesPerBlock>(
      [&](auto i) TRUNKLINE_INLINE_LAMBDA { TransposeBlocks<i>(v); });
  // Column 4b + i is vector i + 4b.
  Unroll<kLanes>([&](auto c) TRUNKLINE_INLINE_LAMBDA {
    hn::StoreU(v[c], Words(),
               reinterpret_cast<uint32_t*>(group + static_cast<int64_t>(c) *
                                                       group_bytes));
  });
}

// One cache line of every row. Lane j of a 16-bit type holds the elements of
// the rows low(j) and high(j), of a 32-bit type that of row(j).
template <class Low, class High>
HWY_INLINE void PackHalves(const Low& low, const High& high, std::byte* group) {
  constexpr int64_t kGroupBytes = kPanelRows * 2;
  constexpr auto kStep = static_cast<int64_t>(kLanes);
  const Words words;
  const hn::Rebind<uint16_t, Words> halves;
  for (int64_t at = 0; at < kLineBytes; at += kStep * 2) {
    const auto widened = [&](const std::byte* from) TRUNKLINE_INLINE_LAMBDA {
      return hn::PromoteTo(
          words,
          hn::LoadU(halves, reinterpret_cast<const uint16_t*>(from + at)));
    };
    for (int64_t lane = 0; lane < kPanelRows / 2; lane += kStep) {
      const auto load = [&](size_t j) TRUNKLINE_INLINE_LAMBDA {
        const int64_t place = lane + static_cast<int64_t>(j);
        return hn::Or(widened(low(place)),
                      hn::ShiftLeft<16>(widened(high(place))));
      };
      PackSquare(load, group + lane * 4, kGroupBytes);
    }
    group += kStep * kGroupBytes;
  }
}

template <class RowOf>
HWY_INLINE void PackWords(const RowOf& row, std::byte* group) {
  constexpr int64_t kGroupBytes = kPanelRows * 4;
  constexpr auto kStep = static_cast<int64_t>(kLanes);
  for (int64_t at = 0; at < kLineBytes; at += kStep * 4) {
    for (int64_t lane = 0; lane < kPanelRows; lane += kStep) {
      const auto load = [&](size_t j) TRUNKLINE_INLINE_LAMBDA {
        return hn::LoadU(Words(),
                         reinterpret_cast<const uint32_t*>(
                             row(lane + static_cast<int64_t>(j)) + at));
      };
      PackSquare(load, group + lane * 4, kGroupBytes);
    }
    group += kStep * kGroupBytes;
  }
}

int64_t PackColumns(const std::byte* rows, int64_t k, DType dtype,
                    std::byte* panel) {
  const int64_t width = DTypeBytes(dtype);
  const int64_t row_bytes = k * width;
  const int64_t columns = kLineBytes / width;
  const int64_t whole = k / columns * columns;
  for (int64_t begin = 0; begin < whole; begin += columns) {
    const std::byte* block = rows + begin * width;
    std::byte* group = panel + begin * kPanelRows * width;
    for (int64_t r = 0; r < kPanelRows; ++r)
      hwy::Prefetch(block + r * row_bytes + kFetchBytes);
    const auto row = [&](int64_t r) { return block + r * row_bytes; };
    const auto far = [&](int64_t j) { return row(j + kPanelRows / 2); };
    const auto even = [&](int64_t j) { return row(2 * j); };
    const auto odd = [&](int64_t j) { return row(2 * j + 1); };
    switch (dtype) {
      case DType::kF32:
        PackWords(row, group);
        break;
      case DType::kF16:
        PackHalves(even, odd, group);
        break;
      case DType::kBF16:
        PackHalves(row, far, group);
        break;
    }
  }
  return whole;
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace trunkline::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trunkline::kernels {
namespace {

constexpr int64_t kPanel = PackedMatrix::kPanel;

// Columns from `begin` on, element by element: what vectors leave over.
template <typename Word>
void PackElements(const std::byte* rows, int64_t row_count, int64_t begin,
                  int64_t k, DType dtype, std::byte* panel) {
  constexpr auto kWidth = static_cast<int64_t>(sizeof(Word));
  for (int64_t o = 0; o < kPanel; ++o) {
    const int64_t place = PlaceInGroup(dtype, o);
    for (int64_t i = begin; i < k; ++i) {
      Word element = 0;
      // The source may be unaligned: bytes, not elements.
      if (o < row_count)
        std::memcpy(&element, rows + (o * k + i) * kWidth, sizeof(Word));
      std::memcpy(panel + (i * kPanel + place) * kWidth, &element,
                  sizeof(Word));
    }
  }
}

}  // namespace

HWY_EXPORT(PackColumns);

int64_t PlaceInGroup(DType dtype, int64_t o) {
  if (dtype != DType::kBF16) return o;
  return o < kPanel / 2 ? 2 * o : 2 * (o - kPanel / 2) + 1;
}

void PackPanel(const std::byte* rows, int64_t row_count, int64_t k, DType dtype,
               std::byte* panel) {
  int64_t done = 0;
  if (row_count == kPanel)
    done = HWY_DYNAMIC_DISPATCH(PackColumns)(rows, k, dtype, panel);
  if (dtype == DType::kF32) {
    PackElements<uint32_t>(rows, row_count, done, k, dtype, panel);
  } else {
    PackElements<uint16_t>(rows, row_count, done, k, dtype, panel);
  }
}

void PackPairPanel(const std::byte* rows, int64_t row_count, int64_t k,
                   std::byte* panel) {
  // With an even number of inputs a row is a row of pairs.
  if (k % 2 == 0) return PackPanel(rows, row_count, k / 2, DType::kF32, panel);
  for (int64_t o = 0; o < kPanel; ++o) {
    for (int64_t j = 0; j < (k + 1) / 2; ++j) {
      uint16_t pair[2] = {0, 0};
      const size_t bytes = 2 * j + 1 < k ? 4 : 2;
      if (o < row_count) std::memcpy(pair, rows + (o * k + 2 * j) * 2, bytes);
      std::memcpy(panel + (j * kPanel + o) * 4, pair, sizeof(pair));
    }
  }
}

}  // namespace trunkline::kernels
#endif  // HWY_ONCE
