#include "model/bpe.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "common/check.h"

namespace trunkline::model {
namespace {

constexpr uint32_t kNoRank = std::numeric_limits<uint32_t>::max();
constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
// Up to here a scan over all pairs per merge beats the heap. Words are short.
constexpr size_t kShortPieceMax = 48;

uint64_t PairKey(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 |
         static_cast<uint32_t>(right);
}

}  // namespace

BpeMerges::BpeMerges(const std::array<int32_t, 256>& byte_tokens,
                     const std::vector<Merge>& merges)
    : byte_tokens_(byte_tokens) {
  TL_CHECK_LT(merges.size(), size_t{kNoRank});
  targets_.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const Merge& m = merges[rank];
    targets_.insert_or_assign(PairKey(m.left, m.right),
                              Target{static_cast<uint32_t>(rank), m.result});
  }
}

const BpeMerges::Target* BpeMerges::Find(int32_t left, int32_t right) const {
  const auto found = targets_.find(PairKey(left, right));
  return found == targets_.end() ? nullptr : &found->second;
}

void BpeMerges::Encode(absl::string_view piece, BpeScratch* scratch,
                       std::vector<int32_t>* ids) const {
  std::vector<int32_t>& token = scratch->token;
  token.resize(piece.size());
  for (size_t i = 0; i < piece.size(); ++i) {
    token[i] = byte_tokens_[static_cast<uint8_t>(piece[i])];
    TL_CHECK_GE(token[i], 0);
  }
  if (piece.size() <= kShortPieceMax) {
    EncodeShort(scratch);
  } else {
    EncodeLong(scratch);
  }
  ids->insert(ids->end(), token.begin(), token.end());
}

void BpeMerges::EncodeShort(BpeScratch* scratch) const {
  std::vector<int32_t>& token = scratch->token;
  std::vector<uint32_t>& rank = scratch->rank;  // of the pair (i, i + 1)
  const auto rank_at = [&](size_t i) {
    if (i + 1 >= token.size()) return kNoRank;
    const Target* target = Find(token[i], token[i + 1]);
    return target == nullptr ? kNoRank : target->rank;
  };
  rank.resize(token.size());
  for (size_t i = 0; i < token.size(); ++i) rank[i] = rank_at(i);
  while (token.size() > 1) {
    const auto lowest = std::min_element(rank.begin(), rank.end());
    if (*lowest == kNoRank) break;
    const size_t i = static_cast<size_t>(lowest - rank.begin());
    token[i] = Find(token[i], token[i + 1])->result;
    token.erase(token.begin() + static_cast<ptrdiff_t>(i) + 1);
    rank.erase(rank.begin() + static_cast<ptrdiff_t>(i) + 1);
    rank[i] = rank_at(i);
    if (i > 0) rank[i - 1] = rank_at(i - 1);
  }
}

void BpeMerges::EncodeLong(BpeScratch* scratch) const {
  std::vector<int32_t>& token = scratch->token;
  std::vector<uint32_t>&previous = scratch->previous, &next = scratch->next;
  std::vector<uint32_t>& rank = scratch->rank;
  std::vector<uint64_t>& queue = scratch->queue;
  const uint32_t n = static_cast<uint32_t>(token.size());
  previous.resize(n);
  next.resize(n);
  rank.assign(n, kNoRank);
  queue.clear();

  const auto rank_at = [&](uint32_t i) {
    if (next[i] == kNone) return kNoRank;
    const Target* target = Find(token[i], token[next[i]]);
    return target == nullptr ? kNoRank : target->rank;
  };
  for (uint32_t i = 0; i < n; ++i) {
    previous[i] = i == 0 ? kNone : i - 1;
    next[i] = i + 1 == n ? kNone : i + 1;
    rank[i] = rank_at(i);
    if (rank[i] != kNoRank) queue.push_back(uint64_t{rank[i]} << 32 | i);
  }
  const auto later = std::greater<uint64_t>();  // the lowest comes out first
  std::make_heap(queue.begin(), queue.end(), later);
  const auto update = [&](uint32_t i) {
    rank[i] = rank_at(i);
    if (rank[i] == kNoRank) return;
    queue.push_back(uint64_t{rank[i]} << 32 | i);
    std::push_heap(queue.begin(), queue.end(), later);
  };

  while (!queue.empty()) {
    const uint64_t lowest = queue.front();
    std::pop_heap(queue.begin(), queue.end(), later);
    queue.pop_back();
    const uint32_t i = static_cast<uint32_t>(lowest);
    // An entry is stale when a neighbour's merge has changed the pair since.
    if (rank[i] != static_cast<uint32_t>(lowest >> 32)) continue;
    const uint32_t right = next[i];
    token[i] = Find(token[i], token[right])->result;
    rank[right] = kNoRank;  // that position is gone
    next[i] = next[right];
    if (next[i] != kNone) previous[next[i]] = i;
    update(i);
    if (previous[i] != kNone) update(previous[i]);
  }

  uint32_t kept = 0;
  for (uint32_t i = 0; i != kNone; i = next[i]) {
    token[kept++] = token[i];
  }
  token.resize(kept);
}

}  // namespace trunkline::model
