#include "trunk_worker/kv_blocks.h"

#include <cstring>

#include "common/check.h"

namespace trunkline::trunk {

KvBlockPool::KvBlockPool(int64_t block_bytes, int64_t blocks)
    : block_bytes_(block_bytes),
      blocks_(block_bytes == 0 ? 0 : blocks),
      memory_(static_cast<size_t>(block_bytes_ * blocks_)) {
  TL_CHECK_EQ(block_bytes_ % static_cast<int64_t>(AlignedBuffer::kAlignment),
              0);
  free_.reserve(blocks_);
  for (int64_t i = blocks_; i-- > 0;) free_.push_back(static_cast<uint32_t>(i));
}

void KvBlockPool::Reserve(int64_t blocks) {
  TL_CHECK_LE(blocks, available());
  reserved_ += blocks;
}

void KvBlockPool::Unreserve(int64_t blocks) {
  TL_CHECK_LE(blocks, reserved_);
  reserved_ -= blocks;
}

std::byte* KvBlockPool::TakeReserved() {
  TL_CHECK_GT(reserved_, 0);
  TL_CHECK(!free_.empty());
  --reserved_;
  ++taken_;
  std::byte* block = memory_.data() + block_bytes_ * free_.back();
  free_.pop_back();
  std::memset(block, 0, block_bytes_);
  return block;
}

void KvBlockPool::GiveBack(std::byte* block) {
  const int64_t offset = block - memory_.data();
  TL_CHECK(offset >= 0 && offset < block_bytes_ * blocks_ &&
           offset % block_bytes_ == 0);
  TL_CHECK_GT(taken_, 0);
  free_.push_back(static_cast<uint32_t>(offset / block_bytes_));
  --taken_;
}

}  // namespace trunkline::trunk
