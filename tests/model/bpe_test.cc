#include "model/bpe.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/random.h"

namespace trunkline::model {
namespace {

std::array<int32_t, 256> ByteTokens() {
  std::array<int32_t, 256> tokens{};
  for (int b = 0; b < 256; ++b) tokens[b] = b;
  return tokens;
}

// The definition: the lowest rank, the leftmost of equal ones, again and again.
std::vector<int32_t> Naive(const std::string& piece,
                           const std::vector<BpeMerges::Merge>& merges) {
  std::map<std::pair<int32_t, int32_t>, size_t> rank;
  for (size_t i = 0; i < merges.size(); ++i) {
    rank[{merges[i].left, merges[i].right}] = i;
  }
  std::vector<int32_t> ids;
  for (const char c : piece) ids.push_back(static_cast<uint8_t>(c));
  for (;;) {
    size_t best = merges.size(), at = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto found = rank.find({ids[i], ids[i + 1]});
      if (found != rank.end() && found->second < best) {
        best = found->second;
        at = i;
      }
    }
    if (best == merges.size()) return ids;
    ids[at] = merges[best].result;
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(at) + 1);
  }
}

// Merges over few letters, so that pieces are full of pairs that compete. Not
// in the order a training would give: later merges may build on any earlier.
std::vector<BpeMerges::Merge> RandomMerges(RandomStream* random,
                                           uint64_t letters) {
  std::vector<int32_t> tokens;
  for (uint64_t i = 0; i < letters; ++i) tokens.push_back('a' + i);
  std::vector<BpeMerges::Merge> merges;
  const uint64_t count = 1 + random->NextBelow(40);
  for (uint64_t i = 0; i < count; ++i) {
    const int32_t left = tokens[random->NextBelow(tokens.size())];
    const int32_t right = tokens[random->NextBelow(tokens.size())];
    const int32_t result = 256 + static_cast<int32_t>(i);
    merges.push_back({left, right, result});
    tokens.push_back(result);
  }
  for (size_t i = merges.size(); i > 1; --i) {
    std::swap(merges[i - 1], merges[random->NextBelow(i)]);
  }
  return merges;
}

TEST(BpeMerges, GivesTheTokensOfTheNaiveDefinition) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    RandomStream random(seed);
    const uint64_t letters = 1 + random.NextBelow(4);
    const auto merges = RandomMerges(&random, letters);
    const BpeMerges bpe(ByteTokens(), merges);
    BpeScratch scratch;
    for (int k = 0; k < 4; ++k) {
      // Both the scan (up to 48 bytes) and the heap (longer ones).
      std::string piece;
      for (uint64_t n = random.NextBelow(k % 2 == 0 ? 49 : 300); n > 0; --n) {
        piece.push_back(static_cast<char>('a' + random.NextBelow(letters)));
      }
      std::vector<int32_t> ids = {-7};  // what is there stays there
      bpe.Encode(piece, &scratch, &ids);
      ASSERT_EQ(ids[0], -7);
      ids.erase(ids.begin());
      ASSERT_EQ(ids, Naive(piece, merges)) << "seed " << seed << " " << piece;
    }
  }
}

TEST(BpeMerges, ARepeatedPairCountsAtItsLastPlace) {
  const std::vector<BpeMerges::Merge> merges = {
      {'a', 'b', 300}, {'b', 'c', 301}, {'a', 'b', 300}};
  const BpeMerges bpe(ByteTokens(), merges);
  BpeScratch scratch;
  std::vector<int32_t> ids;
  bpe.Encode("abc", &scratch, &ids);
  EXPECT_EQ(ids, (std::vector<int32_t>{'a', 301}));
}

// Doubling merges (a a, aa aa, ...): every round touches the whole run. The
// quadratic way would need 10^12 steps for this piece and not end in the test's
// time limit.
TEST(BpeMerges, AMegabyteRunOfOneLetterIsNotQuadratic) {
  std::vector<BpeMerges::Merge> merges = {{'a', 'a', 256}};
  for (int32_t i = 0; i < 8; ++i) merges.push_back({256 + i, 256 + i, 257 + i});
  const BpeMerges bpe(ByteTokens(), merges);
  BpeScratch scratch;
  std::vector<int32_t> ids;
  bpe.Encode(std::string(1 << 20, 'a'), &scratch, &ids);
  EXPECT_EQ(ids, std::vector<int32_t>((1 << 20) / 512, 264));
}

}  // namespace
}  // namespace trunkline::model
