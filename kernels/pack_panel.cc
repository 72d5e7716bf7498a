#include "kernels/pack_panel.h"

#include <algorithm>
#include <cstring>

#include "kernels/packed_matrix.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/pack_panel.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace trunkline::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t kPanelRows = PackedMatrix::kPanel;

// Columns packed by vectors: a multiple of the block; the caller does the rest.
// Without vectors: none.
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
int64_t PackColumns(const std::byte*, int64_t, DType, std::byte*) { return 0; }
#else

using Words = hn::FixedTag<uint32_t, 4>;
using Halves = hn::FixedTag<uint16_t, 8>;
using Bytes = hn::FixedTag<uint8_t, 16>;
using WordVec = hn::Vec<Words>;

// How far ahead of the loads each row is fetched.
constexpr int64_t kFetchBytes = 1024;
// Bytes of a row between two turns: its cache line is used up while it is
// there, also when the rows lie a power of two apart.
constexpr int64_t kLineBytes = 64;

HWY_INLINE hn::Vec<Bytes> LoadBytes(const std::byte* from) {
  return hn::LoadU(Bytes(), reinterpret_cast<const uint8_t*>(from));
}

// The lanes (row, column) of four vectors become (column, row).
HWY_INLINE void Transpose(WordVec& a, WordVec& b, WordVec& c, WordVec& d) {
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

HWY_INLINE void StoreWords(WordVec v, std::byte* to) {
  hn::StoreU(v, Words(), reinterpret_cast<uint32_t*>(to));
}

// Four 32-bit lanes of the group, from `lane` on, over one line of columns.
// Lane j holds the elements of the rows low(j) and high(j).
template <class Low, class High>
HWY_INLINE void PackHalves(const Low& low, const High& high, int64_t lane,
                           std::byte* group) {
  constexpr int64_t kGroupBytes = kPanelRows * 2;
  const Halves halves;
  const Words words;
  for (int64_t at = 0; at < kLineBytes; at += 16, group += 8 * kGroupBytes) {
    WordVec first[4], second[4];
    for (int64_t j = 0; j < 4; ++j) {
      const auto a = hn::BitCast(halves, LoadBytes(low(lane + j) + at));
      const auto b = hn::BitCast(halves, LoadBytes(high(lane + j) + at));
      first[j] = hn::BitCast(words, hn::InterleaveLower(halves, a, b));
      second[j] = hn::BitCast(words, hn::InterleaveUpper(halves, a, b));
    }
    Transpose(first[0], first[1], first[2], first[3]);
    Transpose(second[0], second[1], second[2], second[3]);
    for (int64_t i = 0; i < 4; ++i) {
      StoreWords(first[i], group + i * kGroupBytes + lane * 4);
      StoreWords(second[i], group + (4 + i) * kGroupBytes + lane * 4);
    }
  }
}

template <class RowOf>
HWY_INLINE void PackWords(const RowOf& row, int64_t lane, std::byte* group) {
  constexpr int64_t kGroupBytes = kPanelRows * 4;
  const Words words;
  for (int64_t at = 0; at < kLineBytes; at += 16, group += 4 * kGroupBytes) {
    WordVec v[4];
    for (int64_t j = 0; j < 4; ++j)
      v[j] = hn::BitCast(words, LoadBytes(row(lane + j) + at));
    Transpose(v[0], v[1], v[2], v[3]);
    for (int64_t i = 0; i < 4; ++i)
      StoreWords(v[i], group + i * kGroupBytes + lane * 4);
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
        for (int64_t lane = 0; lane < kPanelRows; lane += 4)
          PackWords(row, lane, group);
        break;
      case DType::kF16:
        for (int64_t lane = 0; lane < kPanelRows / 2; lane += 4)
          PackHalves(even, odd, lane, group);
        break;
      case DType::kBF16:
        for (int64_t lane = 0; lane < kPanelRows / 2; lane += 4)
          PackHalves(row, far, lane, group);
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

}  // namespace trunkline::kernels
#endif  // HWY_ONCE
