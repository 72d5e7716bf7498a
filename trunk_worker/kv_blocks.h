#pragma once

// The memory of all attention layers' keys and values: equal blocks, each
// holding kernels::kKvBlock positions of one sequence for every attention
// layer. One budget, no growth, exact counts.
//
// A sequence reserves its worst case when it is admitted and takes blocks as it
// grows, so a sequence that was admitted never lacks a block. A block is zero
// when it is handed out (attention.h asks for it). One thread at a time.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/aligned_buffer.h"

namespace trunkline::trunk {

class KvBlockPool {
 public:
  // block_bytes 0: a model without attention; every count is then 0 and
  // reserving nothing always succeeds.
  KvBlockPool(int64_t block_bytes, int64_t blocks);
  KvBlockPool(const KvBlockPool&) = delete;
  KvBlockPool& operator=(const KvBlockPool&) = delete;

  bool CanReserve(int64_t blocks) const { return blocks <= available(); }
  void Reserve(int64_t blocks);    // CanReserve(blocks)
  void Unreserve(int64_t blocks);  // gives up what was not taken
  std::byte* TakeReserved();       // turns one reserved block into a taken one
  void GiveBack(std::byte* block);

  int64_t block_bytes() const { return block_bytes_; }
  int64_t blocks() const { return blocks_; }
  int64_t reserved() const { return reserved_; }
  int64_t taken() const { return taken_; }
  int64_t available() const { return blocks_ - reserved_ - taken_; }

 private:
  const int64_t block_bytes_;
  const int64_t blocks_;
  AlignedBuffer memory_;
  std::vector<uint32_t> free_;  // indices, the next one last
  int64_t reserved_ = 0;
  int64_t taken_ = 0;
};

}  // namespace trunkline::trunk
