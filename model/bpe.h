#pragma once

// Byte-pair encoding of one piece of text, on bytes: start from one token per
// byte, then merge the adjacent pair of the lowest rank, the leftmost of equal
// ones, until no pair has a rank.

#include <array>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace trunkline::model {

// Buffers of one encoding thread, kept between pieces.
struct BpeScratch {
  std::vector<int32_t> token;
  std::vector<uint32_t> previous, next;
  std::vector<uint32_t> rank;   // of the pair that starts here
  std::vector<uint64_t> queue;  // rank << 32 | position, a heap
};

// Immutable; safe to use from many threads.
class BpeMerges {
 public:
  struct Merge {
    int32_t left = -1, right = -1, result = -1;
  };
  // Position in `merges` is the rank. A pair that is there twice counts at its
  // last place, as in Hugging Face tokenizers. byte_tokens: -1 for a byte that
  // no piece contains.
  BpeMerges(const std::array<int32_t, 256>& byte_tokens,
            const std::vector<Merge>& merges);

  // Appends the tokens of `piece` (shorter than 2^32 bytes) to *ids. Time
  // n log n, whatever the piece: a run of one letter is not quadratic.
  void Encode(absl::string_view piece, BpeScratch* scratch,
              std::vector<int32_t>* ids) const;

 private:
  struct Target {
    uint32_t rank;
    int32_t result;
  };
  const Target* Find(int32_t left, int32_t right) const;
  void EncodeShort(BpeScratch* scratch) const;
  void EncodeLong(BpeScratch* scratch) const;

  std::array<int32_t, 256> byte_tokens_;
  absl::flat_hash_map<uint64_t, Target> targets_;  // left << 32 | right
};

}  // namespace trunkline::model
